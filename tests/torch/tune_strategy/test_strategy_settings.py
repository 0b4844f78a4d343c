"""Settings of strategies as plain data, and wrong ones."""

import json

import pytest

from aitune.exceptions import (
    AITuneUserInputError,
)
from aitune.testing.fakes import FakeBackend
from aitune.torch.task.accuracy_budget import AccuracyBudget
from aitune.torch.task.profiling.config import ProfilingConfig
from aitune.torch.task.profiling.measuring_stop import NumStepsMeasuringStopStrategy
from aitune.torch.tune_strategy.first_wins_strategy import FirstWinsStrategy
from aitune.torch.tune_strategy.latency_budget_strategy import LatencyBudgetStrategy
from aitune.torch.tune_strategy.max_throughput_strategy import MaxThroughputStrategy
from aitune.torch.tune_strategy.min_latency_strategy import MinLatencyStrategy
from aitune.torch.tune_strategy.one_backend_strategy import OneBackendStrategy

STRATEGIES = {
    "MaxThroughput": MaxThroughputStrategy,
    "MinLatency": lambda backends: MinLatencyStrategy(backends, batch_size=2),
    "LatencyBudget": lambda backends: LatencyBudgetStrategy(8.0, backends, percentile=90),
    "FirstWins": FirstWinsStrategy,
    "OneBackend": lambda backends: OneBackendStrategy(backends[0]),
}


@pytest.mark.parametrize("make", STRATEGIES.values(), ids=STRATEGIES)
def test_settings_are_plain_and_whole(make):
    strategy = make([FakeBackend("a")])
    strategy.enable_performance_validation("diagnostic").enable_correctness_check(False)
    strategy.enable_find_max_batch_size(False)
    settings = json.loads(json.dumps(strategy.to_json_dict()))
    assert settings == strategy.to_json_dict()
    assert settings["strategy"] == type(strategy).__name__
    assert settings["backends"] == [{"name": "Fake", "key": "Fake-a", "config": None}]
    assert settings["explicit_backends"] is True
    assert settings["performance_validation"] == "diagnostic"
    assert settings["correctness_check"] is settings["find_max_batch_size"] is False
    for name in ("workflow", "metric", "accuracy_budget", "profiling_config", "playoff", "seed", "batch_sizes"):
        assert name in settings


def test_default_candidates_are_named_with_their_configuration():
    settings = json.loads(json.dumps(MaxThroughputStrategy().to_json_dict()))
    names = [backend["name"] for backend in settings["backends"]]
    assert names == ["ONNXRuntime", "OpenVINO", "TorchInductorAot", "TorchInductorJit"]
    assert all(backend["config"] for backend in settings["backends"])
    assert settings["explicit_backends"] is False


def test_settings_of_its_own_strategies_and_budgets_are_named():
    config = ProfilingConfig([1, 2], measurement_stop_strategy=NumStepsMeasuringStopStrategy(7))
    budget = AccuracyBudget(metric=_agreement, min_metric=0.9)
    settings = json.loads(json.dumps(MaxThroughputStrategy([], config, accuracy_budget=budget).to_json_dict()))
    stop = settings["profiling_config"]["measurement_stop_strategy"]
    assert stop == {"class": "NumStepsMeasuringStopStrategy", "num_steps": 7, "warmup_samples": 10}
    assert settings["accuracy_budget"]["metric"].endswith("_agreement")
    assert settings["accuracy_budget"]["min_metric"] == 0.9


def _agreement(reference, candidate, samples):
    return 1.0


@pytest.mark.parametrize("budget", [0.01, "1%", {"max_relative_error": 0.01}])
def test_an_accuracy_budget_of_another_kind_is_an_error(budget):
    with pytest.raises(AITuneUserInputError, match="accuracy_budget"):
        MaxThroughputStrategy([], accuracy_budget=budget)


def test_a_metric_that_cannot_be_called_is_an_error():
    with pytest.raises(AITuneUserInputError, match="metric"):
        AccuracyBudget(metric=0.9, min_metric=0.5)
