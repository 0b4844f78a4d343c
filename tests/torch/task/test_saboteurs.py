"""Candidates that are wrong in one way each: every one is caught, by the right check, at the right place."""

import copy
import itertools
from collections.abc import Callable
from typing import NamedTuple

import pytest
import torch
from correctness_models import Scores, references_of, seeded, square_references, tagger_references
from torch import nn

from aitune.testing.graphs import call
from aitune.torch.dynamic_shapes import BatchDim, DynamicDim
from aitune.torch.task.correctness import check


class Saboteur(NamedTuple):
    make: Callable
    check: str
    output: str
    where: str | None = None


def on(key, change):
    """A candidate that is right but for one output."""

    def make(module):
        def infer(ids, mask):
            output = module(ids, mask)
            output[key] = change(output[key])
            return output

        return infer

    return make


def edited(change):
    def apply(tensor):
        tensor = tensor.clone()
        change(tensor)
        return tensor

    return apply


def swap_rows(tensor):
    if len(tensor) > 1:
        tensor[[0, -1]] = tensor[[-1, 0]]


def copy_first_row(tensor):
    tensor[-1] = tensor[0]


def move_one_element(tensor):
    tensor.view(-1)[tensor.abs().argmax()] *= 1.01


def nan_where_large(tensor):
    tensor[tensor > 0.8 * tensor.max()] = float("nan")


def move_argmax(tensor):
    tensor[..., 0] = (tensor[..., 0] + 1) % 5


def stale(module):
    last = None

    def infer(ids, mask):
        nonlocal last
        previous, last = last, module(ids, mask)
        if previous is not None and previous["logits"].shape == last["logits"].shape:
            return {**last, "logits": previous["logits"]}
        return last

    return infer


def aliasing(module):
    buffer = torch.zeros(10_000)

    def infer(ids, mask):
        output = module(ids, mask)
        logits = output["logits"]
        output["logits"] = buffer[: logits.numel()].view(logits.shape).copy_(logits)
        return output

    return infer


def modifies_input(module):
    def infer(ids, mask):
        output = module(ids, mask)
        mask[0, 0] = 7
        return output

    return infer


def drops_mask(module):
    return lambda ids, mask: module(ids, torch.ones_like(mask))


def wrong_when(condition):
    def make(module):
        def infer(ids, mask):
            output = module(ids, mask)
            if condition(ids):
                output["logits"] = output["logits"] * 1.01
            return output

        return infer

    return make


def third_call_differs(module):
    calls = {}

    def infer(ids, mask):
        output = module(ids, mask)
        key = tuple(ids.reshape(-1).tolist())
        calls[key] = calls.get(key, 0) + 1
        return {**output, "logits": output["logits"] * (1.01 if calls[key] >= 3 else 1)}

    return infer


def wrong_after(number):
    def make(module):
        calls = itertools.count(1)
        return on("logits", lambda t: t * (1.01 if next(calls) > number else 1))(module)

    return make


def one_buffer_for_each_shape(module):
    buffers = {}

    def own(tensor):
        return buffers.setdefault(tensor.shape, torch.empty_like(tensor)).copy_(tensor)

    return on("logits", own)(module)


def move_last_element(tensor):
    tensor.view(-1)[-1] += 0.1


def made_for_inference(module):
    return torch.inference_mode()(module)


def leaves_grad_mode_on(module):
    def infer(ids, mask):
        output = module(ids, mask)
        torch.set_grad_enabled(True)
        return output

    return infer


def changes_default_dtype(module):
    def infer(ids, mask):
        output = module(ids, mask)
        torch.set_default_dtype(torch.float64)
        return output

    return infer


def as_if_contiguous(tensor):
    """What a runtime sees that is handed an address and a shape."""
    return torch.as_strided(tensor, tensor.shape, torch.empty(tensor.shape, device="meta").stride())


def leaks_between_rows(module):
    """Right on all it is compared with until a row runs alone."""
    seen = set()

    def infer(ids, mask):
        output = module(ids, mask)
        if ids.shape[0] > 1:
            seen.update(tuple(row) for row in ids.tolist())
        elif tuple(ids[0].tolist()) in seen:
            output["parts"][0] = output["parts"][0] + 0.01
        return output

    return infer


SABOTEURS = {
    "adds a hundredth": Saboteur(on("logits", lambda t: t + 1e-2), "value", "logits", "sample 0"),
    "a thousandth too large": Saboteur(on("logits", lambda t: t * 1.001), "value", "logits", "sample 0"),
    "three times the floor too large": Saboteur(on("logits", lambda t: t * (1 + 3e-5)), "value", "logits", "sample 0"),
    "swaps rows": Saboteur(on("logits", edited(swap_rows)), "value", "logits", "sample 2"),
    "last row is the first": Saboteur(on("logits", edited(copy_first_row)), "value", "logits", "sample 2"),
    "computes in float16": Saboteur(on("logits", lambda t: t.half()), "dtype", "logits", "sample 0"),
    "computes in float16 and hides it": Saboteur(
        on("logits", lambda t: t.half().float()), "value", "logits", "sample 0"
    ),
    "computes in bfloat16 and hides it": Saboteur(on("logits", lambda t: t.bfloat16().float()), "value", "logits"),
    "constant": Saboteur(on("logits", lambda t: torch.full_like(t, 0.1)), "value", "logits", "sample 0"),
    "nothing but zeros": Saboteur(on("logits", torch.zeros_like), "value", "logits", "sample 0"),
    "answer of the call before": Saboteur(stale, "value", "logits", "sample 0 with other values"),
    "one buffer for all calls": Saboteur(aliasing, "aliasing", "logits", "sample 0"),
    "modifies its input": Saboteur(modifies_input, "input modified", "mask", "sample 0"),
    "NaN where the reference is large": Saboteur(on("logits", edited(nan_where_large)), "finite", "logits", "sample 0"),
    "one element off by a percent": Saboteur(on("logits", edited(move_one_element)), "value", "logits", "sample 0"),
    "wrong for odd batches above one": Saboteur(
        wrong_when(lambda ids: ids.shape[0] % 2 == 1 and ids.shape[0] > 1), "value", "logits", "corner batch0=3"
    ),
    "wrong for batch one": Saboteur(wrong_when(lambda ids: ids.shape[0] == 1), "value", "logits", "sample 0"),
    "wrong between the recorded lengths": Saboteur(
        wrong_when(lambda ids: 4 < ids.shape[1] < 9), "value", "logits", "dim0=5, dim1=5"
    ),
    "tuple for a list": Saboteur(on("parts", tuple), "type", "parts", "sample 0"),
    "one entry too many": Saboteur(on("parts", lambda parts: [*parts, parts[0]]), "structure", "parts", "sample 0"),
    "drops an output": Saboteur(
        lambda module: lambda ids, mask: {"logits": module(ids, mask)["logits"]}, "structure", "output", "sample 0"
    ),
    "drops the mask": Saboteur(drops_mask, "value", "logits", "sample 0 with other values"),
    "argmax moved": Saboteur(on("tags", edited(move_argmax)), "value", "tags", "sample 0"),
    "integer off by one": Saboteur(on("tags", lambda t: t + 1), "value", "tags", "sample 0"),
    "int32 for int64": Saboteur(on("tags", lambda t: t.int()), "dtype", "tags", "sample 0"),
    "int for bool": Saboteur(on("parts", lambda parts: [parts[0], parts[1].long()]), "dtype", "parts[1]", "sample 0"),
    "flips a bool": Saboteur(on("parts", lambda parts: [parts[0], ~parts[1]]), "value", "parts[1]", "sample 0"),
    "saturates": Saboteur(on("logits", lambda t: t.clamp(-0.5, 0.5)), "value", "logits", "sample 0"),
    "drops an axis of one": Saboteur(on("logits", lambda t: t.squeeze(0)), "shape", "logits", "sample 0"),
    "wrong at the third call": Saboteur(third_call_differs, "repeat", "logits", "sample 0, call 2 of 3 in a row"),
    "wrong inside the range only": Saboteur(
        wrong_when(lambda ids: 1 < ids.shape[0] < 4 < ids.shape[1] < 9), "value", "logits", "inside"
    ),
    "off by one in positions": Saboteur(
        lambda module: lambda ids, mask: module(ids.roll(1, -1), mask), "value", "logits", "sample 0"
    ),
    "wrong where two rows are equal": Saboteur(
        wrong_when(lambda ids: len(ids) > 1 and bool((ids[0] == ids[1]).all())), "value", "logits", "with equal rows"
    ),
    "one output of several in bfloat16": Saboteur(
        on("parts", lambda parts: [parts[0].bfloat16().float(), parts[1]]), "value", "parts[0]", "sample 0"
    ),
    "a row spread over the batch": Saboteur(
        on("logits", lambda t: t[:1].expand(t.shape)), "value", "logits", "sample 2"
    ),
    "one buffer for each shape": Saboteur(one_buffer_for_each_shape, "aliasing", "logits", "sample 0"),
    "wrong after ten calls": Saboteur(wrong_after(10), "value", "logits"),
    "only the last element": Saboteur(on("logits", edited(move_last_element)), "value", "logits", "sample 0"),
    "a sparse tensor": Saboteur(on("logits", lambda t: t.to_sparse()), "type", "logits", "sample 0"),
    "made for inference only": Saboteur(made_for_inference, "type", "logits", "sample 0"),
    "requires grad": Saboteur(on("logits", lambda t: t.requires_grad_()), "type", "logits", "sample 0"),
    "a vector of one for a scalar's place": Saboteur(on("logits", lambda t: t[..., None]), "shape", "logits"),
    "leaves grad mode on": Saboteur(leaves_grad_mode_on, "global state", "grad mode", "sample 0"),
    "changes the default dtype": Saboteur(changes_default_dtype, "global state", "default dtype", "sample 0"),
    "a row alone differs": Saboteur(leaks_between_rows, "row independence", "output[2]"),
}


@pytest.fixture(autouse=True)
def default_dtype():
    before = torch.get_default_dtype()
    yield
    torch.set_default_dtype(before)


@pytest.fixture(scope="module")
def tagger():
    return tagger_references()


def test_the_original_agrees(tagger):
    module, references = tagger
    agreement = check(module, references)
    assert agreement.passed, agreement.rejection
    assert agreement.calls == tuple(reference.where for reference in references.calls)
    assert {figures.output for figures in agreement.outputs} == {"logits", "tags", "parts[0]", "parts[1]"}


@pytest.mark.parametrize("name", SABOTEURS)
def test_saboteur_is_caught(tagger, name):
    saboteur = SABOTEURS[name]
    module, references = tagger
    agreement = check(saboteur.make(copy.deepcopy(module)), references)
    assert not agreement.passed
    found = agreement.rejection
    assert (found.check, found.output) == (saboteur.check, saboteur.output), found
    assert saboteur.where is None or saboteur.where in found.where, found
    assert found.got != found.expected or found.check in ("aliasing",), found
    if found.check in ("value", "finite", "repeat"):
        assert found.index is not None
        assert found.allowed


def test_transposing_two_equal_axes():
    module, references = square_references()
    assert check(module, references).passed
    found = check(lambda x: module(x.transpose(1, 2)), references).rejection
    assert (found.check, found.output, found.where) == ("value", "output", "sample 0")
    assert check(lambda x: module(x).transpose(1, 2), references).rejection.check == "value"


def test_reading_memory_as_if_it_were_contiguous():
    module, references = square_references()
    found = check(lambda x: module(as_if_contiguous(x)), references).rejection
    assert (found.check, found.where) == ("value", "sample 0, not contiguous")


def test_an_integer_argument_that_was_folded():
    class Shifts(nn.Module):
        def forward(self, x, steps):
            return x.roll(int(steps), 1)

    samples = [call(torch.arange(12.0).reshape(2, 6), torch.tensor(steps)) for steps in (1, 2)]
    references = references_of(Shifts(), samples, [2, 2])
    assert check(Shifts(), references).passed
    found = check(lambda x, steps: x.roll(1, 1), references).rejection
    assert (found.check, found.where) == ("value", "sample 1")


def test_a_keyword_flag_that_is_ignored():
    class Scales(nn.Module):
        def forward(self, x, *, double=False):
            return x * (2 if double else 1)

    module = Scales()
    references = references_of(module, [call(torch.rand(size, 3), double=True) for size in (1, 2)])
    assert check(module, references).passed
    found = check(lambda x, double: module(x), references).rejection
    assert (found.check, found.where) == ("value", "sample 0")


def test_one_element_of_a_million():
    class Halves(nn.Module):
        def forward(self, x):
            return x / 2

    references = references_of(Halves(), [call(torch.rand(1, 1_000_000, generator=torch.Generator().manual_seed(0)))])

    def infer(x):
        output = x / 2
        output[0, 654_321] *= 1.01
        return output

    assert check(infer, references).rejection.index == (0, 654_321)


def test_wrong_only_at_one_corner():
    class Doubles(nn.Module):
        def forward(self, x):
            return x * 2

    samples = [call(torch.randn(2, length, generator=torch.Generator().manual_seed(length))) for length in (4, 6)]
    shapes = {"x": (BatchDim("batch", 1, 8), DynamicDim("length", 2, 64))}
    references = references_of(Doubles(), samples, dynamic_shapes=shapes)
    for corner in ((1, 2), (8, 64)):
        agreement = check(lambda x, corner=corner: x * (2.01 if x.shape == corner else 2), references)
        assert agreement.rejection.where == f"corner batch={corner[0]}, length={corner[1]}"
        assert len(agreement.failures) == 1


def test_wrong_only_outside_what_was_recorded():
    class Doubles(nn.Module):
        def forward(self, x):
            return x * 2

    samples = [call(torch.randn(2, length, generator=torch.Generator().manual_seed(length))) for length in (4, 6)]
    shapes = {"x": (BatchDim("batch", 1, 4), DynamicDim("length", 1, 32))}
    references = references_of(Doubles(), samples, dynamic_shapes=shapes)

    def caught_where(condition):
        return check(lambda x: x * (2.01 if condition(x) else 2), references).rejection.where

    assert caught_where(lambda x: x.shape[1] == 1).endswith("length=1")
    assert caught_where(lambda x: x.shape[1] > 6).endswith("length=32")
    assert "batch=3" in caught_where(lambda x: x.shape[0] % 2 and x.shape[0] > 1)
    assert "batch=1" in caught_where(lambda x: x.shape[0] == 1)


def test_a_dict_for_a_dataclass():
    class Scorer(nn.Module):
        def forward(self, x):
            return Scores(x.mean(1), x.argmax(1))

    references = references_of(Scorer(), [call(torch.randn(size, 5)) for size in (1, 3)])
    assert check(Scorer(), references).passed
    found = check(lambda x: {"pooled": x.mean(1), "best": x.argmax(1)}, references).rejection
    assert (found.check, found.got, found.expected) == ("type", "dict", "Scores")


def test_an_in_place_change_that_is_lost_or_is_another():
    class Adds(nn.Module):
        def forward(self, x):
            return x.add_(1) * 2

    references = references_of(Adds(), [call(torch.randn(size, 5)) for size in (1, 3)])
    assert check(Adds(), references).passed
    found = check(lambda x: (x + 1) * 2, references).rejection
    assert (found.check, found.output, found.allowed) == ("input modified", "x", "as the original leaves it")
    assert check(lambda x: (x.add_(1) * 2, x.add_(1))[0], references).rejection.check == "input modified"


def test_a_view_of_the_input_where_the_original_copies():
    class Copies(nn.Module):
        def forward(self, x):
            return x.clone()

    references = references_of(Copies(), [call(torch.randn(size, 5)) for size in (1, 3)])
    found = check(lambda x: x, references).rejection
    assert (found.check, found.got) == ("aliasing", "the memory of an input")


def test_a_baked_in_state_where_the_original_counts():
    class Counts(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("calls", torch.zeros(()))

        def forward(self, x):
            self.calls += 1
            return x + self.calls

    module = Counts()
    references = references_of(module, [call(torch.randn(size, 5)) for size in (1, 3)])
    start = module.calls.clone()
    assert check(module, references, module=module).passed
    assert torch.equal(module.calls, start)
    found = check(lambda x: x + (start + 1), references).rejection
    assert (found.check, found.where) == ("repeat", "sample 0, call 2 of 3 in a row")


def test_a_small_gap_in_many_dimensions_is_seen_in_each_row():
    module = seeded(lambda: nn.Linear(8, 64))
    references = references_of(module, [call(torch.randn(size, 8)) for size in (1, 16)])

    def infer(x):
        output = module(x)
        if len(x) > 8:
            output[5] = output[5] * 1.0001
        return output

    found = check(infer, references).rejection
    assert found.index[0] == 5
