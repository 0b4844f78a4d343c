import pickle
import threading

import pytest
import torch
from correctness_models import references_of, seeded, tagger_references
from torch import nn

from aitune.exceptions import AITuneUserInputError
from aitune.testing.graphs import call, record_graph
from aitune.torch.dynamic_shapes import BatchDim, DynamicDim
from aitune.torch.task.correctness import check
from aitune.torch.task.float64_run import Float64Copy
from aitune.torch.task.reference import make_references
from aitune.torch.task.structure import tensors_with_locators


def batches(*sizes, width=6):
    generator = torch.Generator().manual_seed(2)
    return [call(torch.randn(size, width, generator=generator)) for size in sizes]


def test_every_call_has_the_original_output():
    module, references = tagger_references()
    (note,) = references.notes
    assert note.startswith("corner batch0=1, dim0=4, dim1=9 was not compared: the original does not run on it (Runtime")
    for reference in references.calls:
        expected = tensors_with_locators(module(*reference.call.args, **reference.call.kwargs))
        got = tensors_with_locators(reference.output)
        assert all(torch.equal(a, b) for (_, a), (_, b) in zip(expected, got, strict=True)), reference.where
        assert len(reference.expectations) == len(got) == 4


def test_the_noise_is_that_of_the_dtype():
    _, references = tagger_references()
    noises = [expectation.noise for expectation in references.calls[0].expectations]
    assert all(1e-9 < noise < 3e-6 for noise in (noises[0], noises[2]))
    assert noises[1] is noises[3] is None
    assert references.calls[0].expectations[0].exact.dtype is torch.float64


def test_the_module_and_the_samples_are_as_before():
    module = seeded(lambda: nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4)))
    module.train()
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    graph_spec, data = record_graph(seeded(lambda: nn.Linear(6, 4)), batches(2, 4))
    inputs = [sample.args[0].clone() for sample in data]
    torch.manual_seed(3)
    state = torch.get_rng_state()
    references = make_references(module, graph_spec, data)
    assert all(torch.equal(before[name], tensor) for name, tensor in module.state_dict().items())
    assert all(tensor.dtype is before[name].dtype for name, tensor in module.state_dict().items())
    assert all(torch.equal(a, b.args[0]) for a, b in zip(inputs, data, strict=True))
    assert torch.equal(torch.get_rng_state(), state)
    assert module.training
    assert any("changes the buffer" in note for note in references.notes)


def test_a_random_forward_is_recognised():
    module = nn.Dropout(0.5).train()
    references = references_of(module, batches(2, 4))
    assert references.is_random
    assert "forward is random" in references.notes
    assert not references.rows


def test_only_the_random_outputs_are_not_compared():
    class Sampler(nn.Module):
        def forward(self, x):
            return {"mean": x * 2, "sample": x * 2 + torch.randn_like(x)}

    references = references_of(Sampler(), batches(2, 4))
    assert [expectation.is_random for expectation in references.calls[0].expectations] == [False, True]
    assert "forward is random (in sample)" in references.notes


def test_a_forward_that_modifies_its_inputs_is_recognised():
    class Adds(nn.Module):
        def forward(self, x, y):
            return x.add_(1) + y

    references = references_of(Adds(), [call(*(sample.args * 2)) for sample in batches(2, 4)])
    assert references.modifies_inputs
    first = references.calls[0]
    assert torch.equal(first.inputs_after[0], first.call.args[0] + 1)
    assert first.inputs_after[1] is None


def test_an_output_that_shares_memory_with_an_input_is_recognised():
    class View(nn.Module):
        def forward(self, x):
            return x.view(-1), x + 1

    class Whole(nn.Module):
        def forward(self, x):
            return x

    assert references_of(View(), batches(3)).calls[0].shares_input == (True, False)
    assert references_of(Whole(), batches(3)).calls[0].shares_input == (True,)


class Uncopyable(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(6, 2)
        self.lock = threading.Lock()

    def forward(self, x):
        return self.linear(x)


class SharesItself(Uncopyable):
    def __deepcopy__(self, memo):
        return self


class OnlyFloat32(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(6, 2)

    def forward(self, x):
        if x.dtype is torch.float64:
            raise TypeError("float32 only")
        return self.linear(x)


class BranchesOnDtype(OnlyFloat32):
    def forward(self, x):
        return self.linear(x) * (2 if x.dtype is torch.float64 else 1)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (Uncopyable, "cannot be copied"),
        (SharesItself, "shares weights"),
        (OnlyFloat32, "does not run in float64: TypeError: float32 only"),
        (BranchesOnDtype, "more than rounding explains"),
    ],
)
def test_without_a_usable_float64_run_eager_is_the_reference(make, said):
    module = seeded(make)
    references = references_of(module, batches(2, 4))
    assert any(said in note and "own output is the reference" in note for note in references.notes)
    (expectation,) = references.calls[0].expectations
    assert expectation.exact is None
    assert expectation.noise is None
    assert module.linear.weight.dtype is torch.float32


class SineOfLargeValues(OnlyFloat32):
    def forward(self, x):
        return (self.linear(x) * 1e4).sin()


class CancelsLargeValues(OnlyFloat32):
    def forward(self, x):
        return (self.linear(x) + 2e3) - 2e3


@pytest.mark.parametrize("make", [SineOfLargeValues, CancelsLargeValues])
def test_noise_above_the_usual_is_believed_where_rounding_explains_it(make):
    module = seeded(make)
    references = references_of(module, batches(2, 4))
    (expectation,) = references.calls[0].expectations
    assert expectation.tolerance.max_noise < expectation.noise < 2e-3
    assert expectation.exact is not None
    assert any("own rounding makes a difference" in note for note in references.notes)
    exact = seeded(make).double()
    assert check(lambda x: exact(x.double()).float(), references).passed
    assert check(lambda x: module(x) * (1 + 11 * expectation.noise), references).rejection.check == "value"


def test_a_large_module_gets_no_float64_copy():
    references = references_of(seeded(lambda: nn.Linear(6, 2)), batches(2, 4), max_float64_parameters=13)
    assert any("has 14 parameters" in note for note in references.notes)


@pytest.mark.parametrize(("dtype", "low", "high"), [(torch.bfloat16, 1e-4, 3e-2), (torch.float16, 1e-5, 4e-3)])
def test_half_modules_have_their_own_noise(dtype, low, high):
    module = seeded(lambda: nn.Sequential(nn.Linear(6, 16), nn.GELU(), nn.Linear(16, 3))).to(dtype)
    references = references_of(module, [call(sample.args[0].to(dtype)) for sample in batches(2, 4)])
    assert low < references.calls[0].expectations[0].noise < high


def test_a_float32_output_of_a_half_module_is_judged_by_the_noise_of_the_half():
    class Widens(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.Sequential(nn.Linear(6, 16), nn.GELU(), nn.Linear(16, 3))

        def forward(self, x):
            return self.layers(x).float()

    module = seeded(Widens).bfloat16()
    references = references_of(module, [call(sample.args[0].bfloat16()) for sample in batches(2, 4)])
    (expectation,) = references.calls[0].expectations
    assert expectation.noise > 1e-4
    assert expectation.tolerance.floor == 5e-3


class Best(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_parameter("weight", nn.Parameter(torch.randn(4, 6)))
        with torch.no_grad():
            # Two classes that only rounding tells apart.
            self.weight[2] = self.weight[1]

    def forward(self, x):
        return (x @ self.weight.T).argmax(-1)


def test_an_argmax_tie_allows_both_and_a_clear_one_only_itself():
    references = references_of(seeded(Best), batches(8, 32))
    tied = clear = 0
    for reference in references.calls:
        others = torch.stack([reference.output, *reference.expectations[0].rounded()])
        for column in others.T:
            seen = set(column.tolist())
            assert seen in ({0}, {3}, {1, 2}, {1}, {2})
            tied += seen == {1, 2}
            clear += seen in ({0}, {3})
    assert tied >= 10
    assert clear >= 10


def test_integers_are_rounded_only_when_a_candidate_gives_others(monkeypatch):
    runs = []
    run = Float64Copy.perturbed_runs
    monkeypatch.setattr(Float64Copy, "perturbed_runs", lambda *args: runs.append(1) or run(*args))
    module = seeded(Best)
    references = references_of(module, batches(8, 32))
    assert check(module, references).passed
    assert not runs
    other_way = check(lambda x: 3 - (x @ module.weight.flip(0).T).argmax(-1), references)
    assert other_way.passed, other_way.rejection
    assert not check(lambda x: module(x).roll(1), references).passed
    assert len(runs) == 1


def test_references_with_integers_can_be_sent_to_another_process():
    module = seeded(Best)
    sent = pickle.loads(pickle.dumps(references_of(module, batches(8, 32))))
    other_way = check(lambda x: 3 - (x @ module.weight.flip(0).T).argmax(-1), sent)
    assert other_way.passed, other_way.rejection
    assert not check(lambda x: module(x).roll(1), pickle.loads(pickle.dumps(sent))).passed


def test_integers_that_hang_on_the_dtype_have_to_agree_exactly():
    class Bits(nn.Module):
        def forward(self, x):
            return torch.full(x.shape[:1], torch.finfo(x.dtype).bits)

    module = Bits()
    references = references_of(module, batches(2, 4))
    assert check(module, references).passed
    assert not check(lambda x: module(x.double()), references).passed


INPUT_DTYPES = [
    torch.float64, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2, torch.complex64, torch.bool,
    torch.int8, torch.uint8, torch.uint16, torch.uint32,
]  # fmt: skip


@pytest.mark.parametrize("dtype", INPUT_DTYPES, ids=str)
def test_calls_of_every_dtype_are_made_up_and_probed(dtype):
    class Widens(nn.Module):
        def forward(self, x):
            return x.to(torch.complex64 if x.is_complex() else torch.float32) * 2

    module = Widens()
    references = references_of(module, [call(sample.args[0].abs().to(dtype)) for sample in batches(2, 4)])
    assert len(references.calls) > 2
    assert bool(references.probes) is dtype.is_floating_point
    assert check(module, references).passed


def test_rows_are_picked_where_the_original_keeps_them_apart():
    _, references = tagger_references()
    assert [row.row for row in references.rows] == [0, 1]
    assert all(row.call.args[0].shape[0] == 1 for row in references.rows)


def test_rows_that_influence_each_other_are_left_out_with_a_note():
    class Centers(nn.Module):
        def forward(self, x):
            return x - x.mean(0)

    references = references_of(Centers(), batches(1, 4))
    assert not references.rows
    assert any("rows of a batch influence each other" in note for note in references.notes)


def test_a_state_that_changes_the_answer_is_recorded_as_a_sequence():
    class Counts(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("calls", torch.zeros(()))

        def forward(self, x):
            self.calls += 1
            return x + self.calls

    module = Counts()
    references = references_of(module, batches(2, 4))
    first = references.calls[0]
    # The module was called when the graph was recorded; references start from the state that it was given in.
    start = first.output - first.call.args[0]
    assert torch.equal(references.sequence[2] - first.call.args[0], start + 2)
    assert any("changes the buffer calls" in note for note in references.notes)


def test_the_original_failing_on_a_sample_is_an_error_with_its_cause():
    graph_spec, data = record_graph(seeded(lambda: nn.Linear(6, 2)), batches(2, 4))
    with pytest.raises(AITuneUserInputError, match="original Linear fails on sample 0: RuntimeError") as caught:
        make_references(nn.Linear(5, 2), graph_spec, data)
    assert isinstance(caught.value.__cause__, RuntimeError)


def test_the_original_refusing_a_made_up_call_is_a_note():
    class EvenOnly(nn.Module):
        def forward(self, x):
            if x.shape[0] % 2:
                raise ValueError("even batches only")
            return x * 2

    references = references_of(EvenOnly(), batches(2, 8))
    assert any("corner batch0=5" in note and "even batches only" in note for note in references.notes)
    assert all(reference.output.shape[0] % 2 == 0 for reference in references.calls)


def test_a_forward_that_changes_a_parameter_is_an_error():
    class Grows(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(6))

        def forward(self, x):
            with torch.no_grad():
                self.weight.add_(1)
            return x * self.weight

    with pytest.raises(AITuneUserInputError, match="'weight' in place"):
        references_of(Grows(), batches(2, 4))


def test_calls_that_the_original_refuses_for_one_reason_are_one_note():
    class NeedsFour(nn.Module):
        def forward(self, x):
            return x.reshape(-1, 4, 3) * 2

    samples = [call(torch.randn(size, 12, generator=torch.Generator().manual_seed(size))) for size in (1, 2)]
    references = references_of(
        NeedsFour(), samples, dynamic_shapes={"x": (BatchDim("b", 1, 2), DynamicDim("d", 12, 40))}
    )
    (note,) = [note for note in references.notes if "made-up calls were not compared" in note]
    assert note.split()[0].isdigit()
    assert "the original does not run on them (the first, corner b=" in note


def test_a_call_of_the_factory_that_the_original_refuses_is_an_error():
    class Embeds(nn.Module):
        def __init__(self):
            super().__init__()
            self.table = nn.Embedding(5, 2)

        def forward(self, ids):
            return self.table(ids)

    samples = [call(torch.arange(size).reshape(size, 1) % 5) for size in (1, 3)]
    graph_spec, data = record_graph(Embeds(), samples)
    with pytest.raises(AITuneUserInputError, match=r"fails on corner batch0=2: IndexError.*input_factory makes"):
        make_references(Embeds(), graph_spec, data, input_factory=lambda sizes: torch.full((sizes["batch0"], 1), 9))


def test_what_the_forward_leaves_in_its_buffers_is_known():
    module = seeded(lambda: nn.BatchNorm1d(6)).train()
    references = references_of(module, batches(2, 4))
    assert set(references.calls[0].buffers_after) == {"running_mean", "running_var", "num_batches_tracked"}
    assert references.calls[0].buffers_after["num_batches_tracked"] == 1 + 2
    assert references.seconds > 0
