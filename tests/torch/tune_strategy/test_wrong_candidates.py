"""A candidate that is made wrong on purpose never wins, whatever its speed and whatever the strategy."""

import pytest
import torch
from strategy_parts import ORIGINAL, ByTable, TimedNet, outcome_of, run, with_context

from aitune.exceptions import CorrectnessError
from aitune.testing.fakes import FakeBackend, add_offset, constant, round_to_float16, swap_first_rows, to_float16
from aitune.testing.graphs import call, record_graph
from aitune.testing.simulated_machine import SimulatedMachine
from aitune.torch.task.accuracy_budget import AccuracyBudget
from aitune.torch.tune_strategy.first_wins_strategy import FirstWinsStrategy
from aitune.torch.tune_strategy.latency_budget_strategy import LatencyBudgetStrategy
from aitune.torch.tune_strategy.max_throughput_strategy import MaxThroughputStrategy
from aitune.torch.tune_strategy.min_latency_strategy import MinLatencyStrategy
from aitune.torch.tune_strategy.one_backend_strategy import OneBackendStrategy
from aitune.torch.tune_strategy.tune_strategy import TuneStrategy

STRATEGIES = {
    "MaxThroughput": MaxThroughputStrategy,
    "MinLatency": MinLatencyStrategy,
    "LatencyBudget": lambda backends: LatencyBudgetStrategy(50.0, backends),
    "FirstWins": FirstWinsStrategy,
    "three hooks": lambda backends: ByTable({ORIGINAL: 1.0, "Fake(wrong)": 1e9}, backends),
}

WRONG = {
    "offset": (add_offset, "value"),
    "swapped row": (swap_first_rows, "value"),
    "float16": (to_float16, "dtype"),
    "rounded to float16": (round_to_float16, "value"),
    "constant": (constant, "value"),
}


@pytest.fixture
def net():
    return TimedNet(SimulatedMachine(), 0.005)


class Wrong(FakeBackend):
    """Answers in a fifth of the time, and wrong."""

    def _infer(self, x):
        self._module.machine.work(0.001)
        with torch.no_grad():
            return self._alter(self._module.answer(x).clone())


@pytest.mark.parametrize("alter", WRONG, ids=list(WRONG))
@pytest.mark.parametrize("make", STRATEGIES.values(), ids=list(STRATEGIES))
def test_it_never_wins_and_the_reason_says_where_it_is_wrong(tmp_path, net, make, alter):
    function, check = WRONG[alter]
    strategy = with_context(make([Wrong("wrong", function)]), net.machine)
    assert run(strategy, tmp_path, net).describe() == ORIGINAL
    assert_rejected(outcome_of(strategy, "wrong"), check)


@pytest.mark.parametrize("alter", WRONG, ids=list(WRONG))
@pytest.mark.parametrize("mode", ["enabled", "disabled"])
def test_it_is_not_used_even_where_it_is_the_only_one(tmp_path, net, alter, mode):
    function, check = WRONG[alter]
    strategy = with_context(OneBackendStrategy(Wrong("wrong", function)), net.machine).enable_performance_validation(
        mode
    )
    with pytest.raises(CorrectnessError, match="allowed"):
        run(strategy, tmp_path, net)
    assert_rejected(outcome_of(strategy, "wrong"), check)


def assert_rejected(outcome, check):
    rejection = outcome.agreement.rejection
    assert (outcome.status, rejection.check) == ("rejected", check)
    parts = [rejection.output, rejection.got, rejection.expected, rejection.allowed, rejection.where]
    if check == "value":
        assert rejection.index is not None
        parts.append(str(list(rejection.index)))
    assert all(part and part in outcome.reason for part in parts)
    assert outcome.measurements == ()


@pytest.mark.parametrize("alter", WRONG, ids=list(WRONG))
def test_without_the_check_it_would_have_won(tmp_path, net, alter):
    strategy = with_context(FirstWinsStrategy([Wrong("wrong", WRONG[alter][0])]), net.machine)
    strategy.enable_correctness_check(False)
    assert run(strategy, tmp_path, net).describe() == "Fake(wrong)"


def test_one_that_gives_precision_away_needs_a_budget(tmp_path, net):
    lossy = Wrong("lossy", round_to_float16, is_exact=False)
    budget = AccuracyBudget(max_relative_error=1e-2)
    for own, of_the_run, expected in (
        (None, None, ORIGINAL),
        (budget, None, "Fake(lossy)"),
        # The run's budget holds where the strategy has none of its own.
        (None, budget, "Fake(lossy)"),
        (AccuracyBudget(max_relative_error=1e-9), budget, ORIGINAL),
    ):
        strategy = FirstWinsStrategy([lossy], accuracy_budget=own)
        with_context(strategy, net.machine, accuracy_budget=of_the_run)
        assert run(strategy, tmp_path, net).describe() == expected


def test_a_budget_does_not_excuse_one_that_says_it_is_exact(tmp_path, net):
    strategy = FirstWinsStrategy([Wrong("exact", round_to_float16)], accuracy_budget=AccuracyBudget(1e-2))
    assert run(with_context(strategy, net.machine), tmp_path, net).describe() == ORIGINAL


class Counts(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x):
        self.calls += 1
        return x * 2


class ForgetsToCount(FakeBackend):
    def _infer(self, x):
        return x * 2


class ChecksItself(TuneStrategy):
    """Compares two backends by itself, as a subclass may, and measures nothing."""

    def _candidates(self):
        return []

    def _tune(self, module, name, graph_spec, data, device, cache_dir):
        self.agreements = []
        for backend in (ForgetsToCount("stateless"), FakeBackend("right")):
            backend.build(module, graph_spec, data, device, cache_dir)
            backend.activate()
            self.agreements.append(self.check_correctness(backend, name, graph_spec, data))
        return backend


def test_a_subclass_that_compares_by_itself_sees_a_state_that_is_not_kept(tmp_path):
    module = Counts().eval()
    graph_spec, data = record_graph(module, [call(torch.randn(size, 3)) for size in (1, 4)])
    strategy = ChecksItself()
    before = module.calls.clone()
    strategy.tune(module, "net", graph_spec, data, torch.device("cpu"), tmp_path)
    stateless, right = strategy.agreements
    assert right.passed, right.rejection
    assert (stateless.rejection.check, stateless.rejection.output) == ("state", "calls")
    assert module.calls == before
