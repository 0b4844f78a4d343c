"""The settings in a report are enough to make the same strategy again by hand, from JSON alone."""

import importlib
import json

import pytest

import aitune.torch as ait
from aitune.torch.backend.registry import registry
from aitune.torch.task.accuracy_budget import AccuracyBudget
from aitune.torch.task.profiling import measuring_stop, profiling_stop
from aitune.torch.task.profiling.config import ProfilingConfig
from aitune.torch.tune_strategy.default_candidates import ModuleKind, default_aot_candidates, default_jit_candidates

LOSSY = AccuracyBudget(max_relative_error=0.02, min_cosine=0.99)
CONFIG = ProfilingConfig(
    [1, 4],
    measurement_stop_strategy=measuring_stop.NumStepsMeasuringStopStrategy(7, 3),
    profiling_stop_strategy=profiling_stop.AllSamplesProfilingStopStrategy(),
)
SWITCHED = {
    "as made": lambda strategy: strategy,
    "switched": lambda strategy: (
        strategy.enable_performance_validation("diagnostic")
        .enable_correctness_check(False)
        .enable_find_max_batch_size()
    ),
}


def onnx():
    return registry.load("ONNXRuntime")()


STRATEGIES = {
    "MaxThroughput": ait.MaxThroughputStrategy,
    "jit": ait.MaxThroughputStrategy.for_jit,
    "configured": lambda: ait.MaxThroughputStrategy([onnx()], CONFIG, accuracy_budget=LOSSY),
    "MinLatency": lambda: ait.MinLatencyStrategy([], batch_size=4),
    "LatencyBudget": lambda: ait.LatencyBudgetStrategy(12.5, None, CONFIG, percentile=99),
    "FirstWins": lambda: ait.FirstWinsStrategy([onnx()]),
    "OneBackend": lambda: ait.OneBackendStrategy(onnx()),
}


def rebuilt(settings):
    """Make a strategy from its settings, with nothing but the names that they hold."""
    arguments = {"workflow": settings["workflow"]}
    for name in ("batch_size", "latency_budget_ms", "percentile"):
        if name in settings:
            arguments[name] = settings[name]
    backends = [backend_from(entry) for entry in settings["backends"]] if settings["explicit_backends"] else None
    if settings["strategy"] == "OneBackendStrategy":
        arguments["backend"] = backends[0]
    else:
        arguments["backends"] = backends
    if settings["profiling_config"] is not None:
        arguments["profiling_config"] = ProfilingConfig(**{n: made(v) for n, v in settings["profiling_config"].items()})
    if settings["accuracy_budget"] is not None:
        arguments["accuracy_budget"] = AccuracyBudget(**settings["accuracy_budget"])
    strategy = getattr(ait, settings["strategy"])(**arguments)
    strategy.enable_performance_validation(settings["performance_validation"])
    strategy.enable_correctness_check(settings["correctness_check"])
    if settings["find_max_batch_size"] is not None:
        strategy.enable_find_max_batch_size(settings["find_max_batch_size"])
    return strategy


def backend_from(entry):
    plain = registry.load(entry["name"])()
    values = {name: value for name, value in entry["config"].items() if name != "class"}
    return type(plain)(type(plain.config)(**{name: made(value) for name, value in values.items()}))


def made(value):
    """Make what a setting names: a data type of torch, or an object of one of the modules of stop strategies."""
    if isinstance(value, str) and value.startswith("torch."):
        return getattr(importlib.import_module("torch"), value.removeprefix("torch."))
    if isinstance(value, dict) and "class" in value:
        where = next(module for module in (measuring_stop, profiling_stop) if hasattr(module, value["class"]))
        return getattr(where, value["class"])(**{name: each for name, each in value.items() if name != "class"})
    return value


@pytest.mark.parametrize("switch", SWITCHED.values(), ids=list(SWITCHED))
@pytest.mark.parametrize("make", STRATEGIES.values(), ids=list(STRATEGIES))
def test_a_strategy_is_made_again_from_its_settings(make, switch):
    strategy = switch(make())
    settings = json.loads(json.dumps(strategy.to_json_dict()))
    again = rebuilt(settings)
    assert type(again) is type(strategy)
    assert again.to_json_dict() == strategy.to_json_dict()
    assert [backend.key() for backend in again._backends] == [backend.key() for backend in strategy._backends]


@pytest.mark.parametrize("make", [default_aot_candidates, default_jit_candidates])
def test_every_default_candidate_is_made_again_from_its_settings(make):
    kind = ModuleKind("cpu", has_convolutions=True, may_lose_precision=True)
    strategy = ait.MaxThroughputStrategy(make(kind, False))
    assert not all(backend.is_exact for backend in strategy._backends)
    settings = json.loads(json.dumps(strategy.to_json_dict()))
    assert [backend_from(entry).key() for entry in settings["backends"]] == [b.key() for b in strategy._backends]
