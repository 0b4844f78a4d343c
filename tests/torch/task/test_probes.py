"""Calls with exceptional values: NaN, infinities, ids beyond their table."""

import pytest
import torch
from correctness_models import references_of, seeded, tagger_references
from torch import nn

from aitune.testing.graphs import call, record_graph
from aitune.torch.config import config
from aitune.torch.task.correctness import check
from aitune.torch.task.reference import make_references


class Function(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x)


def references_for(function, *more):
    generator = torch.Generator().manual_seed(0)
    samples = [call(torch.randn(size, 6, generator=generator), *more) for size in (2, 5)]
    return references_of(Function(function), samples)


def probed(references):
    return [probe.where for probe in references.probes]


def not_finite(references):
    return [where for where in probed(references) if "NaN" in where or "inf" in where]


def without_nan(x):
    return x.nan_to_num(0.0, float("inf"), float("-inf"))


# What a runtime with other rules for NaN makes of an operation, beside what torch does.
SWALLOWED = {
    "relu": (torch.relu, lambda x: without_nan(x).relu()),
    "clamp": (lambda x: x.clamp(-1, 1), lambda x: without_nan(x).clamp(-1, 1)),
    "largest": (lambda x: x.amax(-1), lambda x: x.nan_to_num(-9, float("inf"), float("-inf")).amax(-1)),
    "argmax": (lambda x: x.argmax(-1), lambda x: x.nan_to_num(-9, float("inf"), float("-inf")).argmax(-1)),
    "comparison": (lambda x: x >= 0, lambda x: (x >= 0) | x.isnan()),
}


@pytest.mark.parametrize("name", SWALLOWED)
def test_a_swallowed_nan_is_reported_and_rejects_where_asked(name):
    right, wrong = SWALLOWED[name]
    references = references_for(right)
    assert check(right, references).deviations == ()
    agreement = check(wrong, references)
    assert agreement.passed
    assert [found.where for found in agreement.deviations] == ["NaN in x"]
    with config.override(on_exceptional_values="reject"):
        strict = check(wrong, references_for(right))
    assert not strict.passed
    assert strict.rejection == strict.deviations[0]
    assert strict.rejection in strict.failures


@pytest.mark.parametrize("name", SWALLOWED)
def test_what_is_otherwise_in_a_batch_alone_is_found(name):
    right, wrong = SWALLOWED[name]
    samples = [call(torch.randn(size, 6)) for size in (1, 3)]
    references = references_of(Function(right), samples, [1, 3])
    found = check(lambda x: (right if x.shape[0] == 1 else wrong)(x), references).deviations
    assert [rejection.where for rejection in found] == ["NaN in x, in a batch of two"]


# Candidates that agree with ``x * 2`` on all that was recorded.
FAR_OFF = {
    "ten times the values, negated, in x": lambda x: x.clamp(min=-6) * 2,
    "zeros in x": lambda x: x * 2 + (~x.any()).float(),
}


@pytest.mark.parametrize("where", FAR_OFF)
def test_values_unlike_the_recorded_ones(where):
    assert where in {found.where for found in check(FAR_OFF[where], references_for(lambda x: x * 2)).deviations}


def test_infinities_are_told_apart():
    def saturating(x):
        return x.nan_to_num(float("nan"), 10.0, float("-inf")) * 2

    found = check(saturating, references_for(lambda x: x * 2)).deviations
    assert [(rejection.where, rejection.check) for rejection in found] == [("+inf in x", "finite")]


def test_a_candidate_that_raises_on_nan():
    def refusing(x):
        if x.isnan().any():
            raise ValueError("NaN is not allowed")
        return x * 2

    (found,) = check(refusing, references_for(lambda x: x * 2)).deviations
    assert (found.check, found.where, found.expected) == ("raised", "NaN in x", "an answer")


def test_an_original_that_refuses_nan_is_left_in_peace():
    def refusing(x):
        if not x.isfinite().all():
            raise ValueError("finite values only")
        return x * 2

    references = references_for(refusing)
    assert not_finite(references) == []
    assert check(lambda x: x * 2, references).passed


def test_a_loop_that_nan_never_ends_is_cut_off():
    def halves_until_small(x):
        while not x.abs().max() < 1e-3:
            x = x / 2
        return x

    assert "NaN in x" not in probed(references_for(halves_until_small))


def test_nan_in_a_sample_rejects_as_ever():
    sample = torch.tensor([[1.0, float("nan")], [-1.0, 2.0]])
    references = references_of(Function(torch.relu), [call(sample)])
    found = check(lambda x: without_nan(x).relu(), references).rejection
    assert (found.check, found.where, found.index) == ("finite", "sample 0", (0, 1))


def test_masks_are_left_alone_beside_data():
    class Masked(nn.Module):
        def forward(self, x, mask):
            return x * mask

    samples = [call(torch.randn(size, 6), torch.tensor([1.0, 0.0, 1.0]).repeat(size, 2)) for size in (1, 3)]
    alone = ["NaN in x", "+inf in x", "-inf in x"]
    assert not_finite(references_of(Masked(), samples)) == [*alone, *(f"{where}, in a batch of two" for where in alone)]


def test_ids_beyond_their_table():
    module, references = tagger_references()
    outside = ["40 in ids, which indexes 40 rows", "-1 in ids, which indexes 40 rows"]
    assert probed(references) == outside
    assert check(module, references, survives_bad_indices=True).deviations == ()

    def lenient(ids, mask):
        return module(ids.clamp(0, 39), mask)

    agreement = check(lenient, references, survives_bad_indices=True)
    assert agreement.passed
    assert [(found.check, found.where) for found in agreement.deviations] == [("refused", where) for where in outside]
    assert "IndexError" in agreement.deviations[0].expected
    careful = check(lenient, references)
    assert careful.deviations == ()
    assert any("ids beyond their table are not tried" in note for note in careful.notes)


def test_a_negative_id_that_counts_from_the_end():
    class Looks(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("table", torch.arange(30.0).reshape(10, 3))

        def forward(self, ids):
            return self.table[ids]

    module = Looks()
    references = references_of(module, [call(torch.tensor([1, 2, 3])), call(torch.tensor([7, 5, 0, 9, 4]))], [3, 5])
    assert [probe.refusal is None for probe in references.probes] == [False, True]
    found = check(lambda ids: module(ids.clamp(min=0)), references, survives_bad_indices=True).deviations
    assert [(rejection.check, rejection.where[:2]) for rejection in found] == [("value", "-1")]


def test_state_and_inputs_are_as_before():
    class Counts(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("total", torch.zeros(()))

        def forward(self, x):
            self.total += x.sum()
            return x.mul_(2)

    module = Counts()
    graph_spec, data = record_graph(module, [call(torch.ones(2, 3))])
    before, given = module.total.clone(), data[0].args[0].clone()
    assert make_references(module, graph_spec, data).probes
    assert module.total == before
    assert torch.equal(data[0].args[0], given)


@pytest.mark.parametrize("make", [lambda: nn.LSTM(4, 4), lambda: nn.TransformerEncoderLayer(4, 2, 8, batch_first=True)])
def test_fused_operations_can_be_probed(make):
    module = seeded(make)
    references = references_of(module, [call(torch.randn(2, 3, 4))])
    assert len(not_finite(references)) == 3
    assert check(module, references).deviations == ()
