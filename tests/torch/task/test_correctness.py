import pytest
import torch
from correctness_models import references_of, seeded, square_references, tagger_references
from torch import nn

from aitune.exceptions import AITuneUserInputError
from aitune.testing.graphs import call
from aitune.torch.task.accuracy_budget import AccuracyBudget
from aitune.torch.task.correctness import check


def batches(*sizes, dtype=torch.float32):
    generator = torch.Generator().manual_seed(4)
    return [call(torch.randn(size, 6, generator=generator).to(dtype)) for size in sizes]


def test_figures_are_the_worst_over_all_calls():
    module, references = square_references()
    errors = iter((1e-6, 4e-6, 2e-6))

    def infer(x):
        return module(x) * (1 + next(errors, 0.0))

    (figures,) = check(infer, references).outputs
    assert figures.relative_l2 == pytest.approx(4e-6, rel=0.2)
    assert figures.allowed >= 1e-5
    assert figures.noise > 0
    assert figures.cosine == pytest.approx(1.0)


def test_an_exception_of_the_candidate_comes_as_it_is():
    _, references = square_references()

    def infer(x):
        raise MemoryError("candidate")

    with pytest.raises(MemoryError, match="candidate"):
        check(infer, references)


def test_the_references_survive_a_candidate_that_overwrites_everything():
    module, references = square_references()

    def infer(x):
        output = module(x)
        x.zero_()
        return output

    assert check(infer, references).rejection.check == "input modified"
    assert check(module, references).passed


def test_random_generators_are_as_before():
    module, references = square_references()
    torch.manual_seed(9)
    before = torch.get_rng_state()
    check(lambda x: module(x) + 0 * torch.rand(1), references)
    assert torch.equal(torch.get_rng_state(), before)


def test_no_gradients_are_recorded():
    module, references = square_references()
    modes = []
    check(lambda x: (module(x), modes.append(torch.is_grad_enabled()))[0], references)
    assert not any(modes)


def test_a_random_forward_is_compared_under_one_seed():
    module = nn.Dropout(0.5).train()
    references = references_of(module, batches(2, 4))
    agreement = check(module, references)
    assert agreement.passed, agreement.rejection
    assert agreement.relative_error == 0
    assert "random values agree with the original's under one seed" in agreement.notes
    assert check(lambda x: module(x) * float("nan"), references).rejection.check == "finite"
    assert check(lambda x: module(x)[:1], references).rejection.check == "shape"
    assert check(lambda x: module(x).double(), references).rejection.check == "dtype"


def test_other_numbers_from_the_same_seed_are_no_disagreement():
    module = nn.Dropout(0.5).train()
    references = references_of(module, batches(2, 4))
    agreement = check(lambda x: module(x.flip(0)).flip(0), references)
    assert agreement.passed, agreement.rejection
    assert agreement.relative_error is None
    assert any(note.startswith("values not comparable: forward is random") for note in agreement.notes)


def test_random_numbers_that_were_baked_in_are_a_disagreement():
    module = nn.Dropout(0.5).train()
    references = references_of(module, batches(2, 4))
    found = check(lambda x: x * (torch.arange(x.numel()).reshape(x.shape) % 2) * 2, references).rejection
    assert (found.check, found.output, found.where) == ("random", "output", "sample 0")


def test_right_values_beside_random_ones_are_compared():
    class Sampler(nn.Module):
        def forward(self, x):
            return x * 2, x + torch.randn_like(x)

    references = references_of(Sampler(), batches(2, 4))
    assert check(Sampler(), references).passed
    assert check(lambda x: (x * 2.01, x), references).rejection.output == "output[0]"
    assert check(lambda x: (x * 2, x * 1.0), references).rejection.check == "random"


def test_calls_that_never_reach_the_candidate_are_left_out():
    class Broadcasts(nn.Module):
        def forward(self, x, y):
            return x.sum(1) + y.sum(1)

    samples = [call(torch.randn(2, length), torch.randn(2, length)) for length in (3, 8)]
    references = references_of(Broadcasts(), samples, [2, 2])

    def infer(x, y):
        if x.shape != y.shape:
            raise ValueError("exported for equal lengths")
        return Broadcasts()(x, y)

    with pytest.raises(ValueError, match="equal lengths"):
        check(infer, references)
    agreement = check(infer, references, equal_symbols=[("dim0", "dim1")])
    assert agreement.passed
    assert any("the candidate needs dim0 = dim1" in note for note in agreement.notes)


def test_every_call_that_disagrees_is_named():
    module, references = square_references()
    agreement = check(lambda x: module(x) * (1.01 if len(x) > 1 else 1), references)
    assert agreement.rejection == agreement.failures[0]
    where = [failure.where for failure in agreement.failures]
    assert where == [call.where for call in references.calls if len(call.call.args[0]) > 1]
    assert agreement.calls == tuple(call.where for call in references.calls)
    assert check(module, references).failures == ()


def test_a_call_that_raises_after_a_disagreement_is_one_too():
    module, references = square_references()

    def infer(x):
        if len(x) > 1:
            raise ValueError("no")
        return module(x) * 2

    agreement = check(infer, references)
    assert {failure.check for failure in agreement.failures} == {"value", "raised"}
    assert agreement.rejection.check == "value"


class Averages(nn.Module):
    """Keeps a running mean of what it saw."""

    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.zeros(6))
        self.register_buffer("unused", torch.zeros(2))

    def forward(self, x):
        self.mean.mul_(0.9).add_(0.1 * x.mean(0))
        return x * 2


def test_the_state_after_a_call_is_compared():
    module = Averages()
    references = references_of(module, batches(2, 4))
    before = module.mean.clone()
    assert check(module, references, module=module).passed

    def forgets(x):
        return x * 2

    def another_mean(x):
        module.mean.mul_(0.8).add_(0.2 * x.mean(0))
        return x * 2

    def writes_more(x):
        module.unused.add_(1)
        return module(x)

    found = [check(infer, references, module=module).rejection for infer in (forgets, another_mean, writes_more)]
    assert [(rejection.check, rejection.output) for rejection in found] == [
        ("state", "mean"), ("state", "mean"), ("state", "unused"),
    ]  # fmt: skip
    assert found[1].index is not None
    assert torch.equal(module.mean, before)
    assert any("buffers of the module" in note for note in check(forgets, references).notes)


# -- budgets -------------------------------------------------------------------------------------------------------


def lossy(module):
    return lambda x: module(x.bfloat16().float())


def test_without_a_budget_a_lossy_candidate_is_rejected_and_with_one_it_passes():
    module, references = square_references()
    assert check(lossy(module), references).rejection.check == "value"
    agreement = check(lossy(module), references, budget=AccuracyBudget(max_relative_error=0.02, min_cosine=0.999))
    assert agreement.passed, agreement.rejection
    assert 1e-4 < agreement.relative_error < 0.02


def test_a_budget_that_is_exceeded_rejects():
    module, references = square_references()
    found = check(lossy(module), references, budget=AccuracyBudget(max_relative_error=1e-4)).rejection
    assert (found.check, found.where) == ("value", "sample 0")


def test_a_metric_judges_the_recorded_samples_only():
    module, references = square_references()
    seen = []

    def metric(expected, got, samples):
        seen.append((len(expected), len(got), [tuple(sample.args[0].shape) for sample in samples]))
        return 1.0 - max((a - b).abs().max().item() for a, b in zip(expected, got, strict=True))

    agreement = check(lossy(module), references, budget=AccuracyBudget(metric=metric, min_metric=0.9))
    assert agreement.passed, agreement.rejection
    assert seen == [(3, 3, [(1, 6, 6), (4, 6, 6), (4, 6, 6)])]
    assert any(note.startswith("metric 0.9") for note in agreement.notes)
    assert any("row independence is not checked" in note for note in agreement.notes)
    found = check(lossy(module), references, budget=AccuracyBudget(metric=metric, min_metric=0.9999)).rejection
    assert (found.check, found.expected) == ("metric", "at least 0.9999")


def test_a_metric_that_raises_is_an_error():
    module, references = square_references()
    with pytest.raises(AITuneUserInputError, match="raised ZeroDivisionError"):
        check(module, references, budget=AccuracyBudget(metric=lambda *_: 1 / 0, min_metric=0))


# -- half precision -------------------------------------------------------------------------------------------------


def half_network(dtype):
    module = seeded(lambda: nn.Sequential(nn.Linear(6, 32), nn.GELU(), nn.Linear(32, 32), nn.GELU(), nn.Linear(32, 16)))
    wide = [parameter.detach().to(dtype).float() for parameter in module.parameters()]
    module.to(dtype)
    widened = seeded(
        lambda: nn.Sequential(nn.Linear(6, 32), nn.GELU(), nn.Linear(32, 32), nn.GELU(), nn.Linear(32, 16))
    )
    with torch.no_grad():
        for parameter, values in zip(widened.parameters(), wide, strict=True):
            parameter.copy_(values)
    return module, widened


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_modules_are_judged_by_their_own_noise(dtype):
    module, widened = half_network(dtype)
    references = references_of(module, batches(2, 8, dtype=dtype))

    def at_distance(factor):
        """The right answer and a deviation of ``factor`` times what is allowed, of one sign pattern."""

        def infer(x):
            right = widened(x.float())
            allowed = check(module, references).outputs[0].allowed
            pattern = torch.sign(torch.sin(torch.arange(right.numel()))).reshape(right.shape)
            return (right + factor * allowed * right.square().mean(1, keepdim=True).sqrt() * pattern).to(dtype)

        return infer

    assert check(module, references).passed
    # A candidate may fuse in float32 and round once: closer to the truth than the module itself.
    assert check(lambda x: widened(x.float()).to(dtype), references).passed
    assert check(at_distance(0.5), references).passed
    assert check(at_distance(2.0), references).rejection.check == "value"


def test_an_int8_candidate_does_not_pass_for_exact():
    module, references = square_references()

    def infer(x):
        weight = module.linear.weight
        scale = weight.abs().max() / 127
        return nn.functional.linear(x, (weight / scale).round() * scale, module.linear.bias)

    assert check(infer, references).rejection.check == "value"


# -- honest candidates ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("order", ["reversed", "split", "float64"])
def test_another_order_of_the_sums_is_honest(order):
    module = seeded(lambda: nn.Linear(512, 64))
    weight, bias = module.weight, module.bias

    def infer(x):
        if order == "float64":
            return nn.functional.linear(x.double(), weight.double(), bias.double()).float()
        if order == "reversed":
            return nn.functional.linear(x.flip(1), weight.flip(1), bias)
        return sum(x[:, start : start + 32] @ weight[:, start : start + 32].T for start in range(0, 512, 32)) + bias

    generator = torch.Generator().manual_seed(0)
    references = references_of(module, [call(torch.randn(size, 512, generator=generator)) for size in (1, 8)])
    agreement = check(infer, references)
    assert agreement.passed, agreement.rejection
    assert agreement.relative_error < 0.2 * agreement.outputs[0].allowed


@pytest.mark.parametrize("seed", range(8))
def test_a_scoring_head_near_zero_is_not_rejected_for_its_rounding(seed):
    class Head(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 1))

        def forward(self, x):
            return self.layers(x)

    torch.manual_seed(seed)
    module = Head().eval()
    references = references_of(module, [call(torch.randn(size, 64)) for size in (1, 64)])
    first, last = module.layers[0], module.layers[2]
    order = torch.randperm(256)

    def infer(x):
        hidden = nn.functional.gelu(nn.functional.linear(x, first.weight[order], first.bias[order]))
        return nn.functional.linear(hidden, last.weight[:, order], last.bias)

    agreement = check(infer, references)
    assert agreement.passed, agreement.rejection


def test_an_argmax_tie_may_fall_either_way():
    class Best(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.randn(4, 6))
            with torch.no_grad():
                self.weight[2] = self.weight[1]

        def forward(self, x):
            return (x @ self.weight.T).argmax(-1)

    module = seeded(Best)
    references = references_of(module, batches(8, 32))

    def last_of_the_best(x):
        return 3 - (x @ module.weight.T).flip(-1).argmax(-1)

    assert not torch.equal(last_of_the_best(batches(32)[0].args[0]), module(batches(32)[0].args[0]))
    agreement = check(last_of_the_best, references)
    assert agreement.passed, agreement.rejection
    found = check(lambda x: torch.where(module(x) == 0, 3, module(x)), references).rejection
    assert (found.check, found.expected, found.got) == ("value", "0", "3")


def test_a_module_without_tensors_in_its_output():
    class Flag(nn.Module):
        def forward(self, x):
            return {"rows": int(x.shape[1]), "ok": True}

    references = references_of(Flag(), batches(2, 4))
    assert check(Flag(), references).passed
    assert check(lambda x: {"rows": 6, "ok": False}, references).rejection.output == "ok"


def test_a_module_without_inputs():
    class Constant(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("table", torch.arange(4.0))

        def forward(self):
            return self.table

    references = references_of(Constant(), [call()], [None])
    assert check(Constant(), references).passed
    assert check(lambda: torch.zeros(4), references).rejection.check == "value"


def test_checks_are_the_same_every_time():
    _, first = tagger_references()
    module, second = tagger_references()
    assert check(module, first) == check(module, second)


def test_a_state_that_was_advanced_since_the_references_were_made():
    class Counts(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("calls", torch.zeros(()))

        def forward(self, x):
            self.calls += 1
            return x + self.calls

    module = Counts()
    references = references_of(module, [call(torch.randn(size, 5)) for size in (1, 3)])
    module.calls += 1000
    agreement = check(module, references, module=module)
    assert agreement.passed, agreement.rejection
    assert module.calls > 1000
    assert check(lambda x: (module(x), module(x))[0], references, module=module).rejection.check == "state"
