"""The page of aitune.torch.tune_strategy.profiling_tune_strategy, entry by entry."""

import dataclasses
import inspect
import typing

import pytest
from api_table import (
    NAMED_REST,
    POSITIONAL,
    REQUIRED,
    Method,
    assert_walk_fails_without,
    check_method,
    parameters_of,
    positional,
)

import aitune.torch.tune_strategy.profiling_tune_strategy as page
from aitune.torch.tune_strategy.latency_budget_strategy import LatencyBudgetStrategy
from aitune.torch.tune_strategy.max_throughput_strategy import MaxThroughputStrategy
from aitune.torch.tune_strategy.min_latency_strategy import MinLatencyStrategy
from aitune.torch.tune_strategy.mixin.find_max_batch_size_mixin import FindMaxBatchSizeMixin
from aitune.torch.tune_strategy.multi_backend_strategy import MultiBackendStrategy

BackendPerfResult = page.BackendPerfResult
BackendProfilingResult = page.BackendProfilingResult
ProfilingTuneStrategy = page.ProfilingTuneStrategy
TuneCandidate = page._TuneCandidate

GRAPH = positional("name", "graph_spec", "data")
RUN = positional("module", "name", "graph_spec", "data", "device", "cache_dir")

STRATEGY_METHODS = [
    Method("_backends", kind="property"),
    Method("_default_backends"),
    Method("_describe_parts"),
    Method("_fmt", positional("value")),
    Method("_get_profiling_config", positional("batching", "max_batch_size")),
    Method("_is_better", positional("result", "other"), abstract=True),
    Method("_log_baseline_selected", positional("backend")),
    Method("_measure", (*positional("backend"), *GRAPH, *positional("profiling_cfg")), abstract=True),
    Method("_post_tune", (*positional("backend"), *GRAPH)),
    Method("_pre_tune", RUN),
    Method("_record_perf_result", positional("backend", "result")),
    Method("_resolve_winner", positional("best")),
    Method("_run_backends", (*RUN, *positional("batching", "max_batch_size"))),
    Method("_speedup", positional("result", "baseline_result"), abstract=True),
    Method("_tune", RUN),
    Method("enable_performance_validation", (("enable", POSITIONAL, True),)),
    Method("to_json_dict"),
]

STRATEGY_ATTRIBUTES = {
    "_baseline_backend": None,
    "_baseline_result": None,
    "_description": "",
    "_metric_label": "",
    "_metric_unit": "",
    "_performance_validation_enabled": True,
    "_title": "",
    "_value_fmt": ".2f",
    "perf_validation_results": [],
}


def test_backend_perf_result():
    fields = ["backend_description", "metric", "baseline_metric", "speedup", "passed"]
    assert [field.name for field in dataclasses.fields(BackendPerfResult)] == fields
    assert parameters_of(BackendPerfResult.__init__) == positional(*fields)
    assert not inspect.isabstract(BackendPerfResult)


class Result(BackendProfilingResult):
    @property
    def metric(self):
        return 2.5


def test_backend_profiling_result_is_abstract_through_its_metric():
    assert inspect.isabstract(BackendProfilingResult)
    assert set(BackendProfilingResult.__abstractmethods__) == {"metric"}
    check_method(BackendProfilingResult, Method("metric", abstract=True, kind="property"))
    with pytest.raises(TypeError, match="abstract"):
        BackendProfilingResult(1)


def test_backend_profiling_result_takes_its_field_by_position_and_by_keyword():
    assert [field.name for field in dataclasses.fields(BackendProfilingResult)] == ["selected_batch_size"]
    assert parameters_of(BackendProfilingResult.__init__) == positional("selected_batch_size")
    assert Result(3).selected_batch_size == Result(selected_batch_size=3).selected_batch_size == 3


def test_backend_profiling_result_to_json_dict():
    check_method(BackendProfilingResult, Method("to_json_dict", positional("metric_label")))
    assert Result(3).to_json_dict("throughput") == {"selected_batch_size": 3, "throughput": 2.5}


def test_tune_candidate():
    assert [field.name for field in dataclasses.fields(TuneCandidate)] == ["backend", "result"]
    assert parameters_of(TuneCandidate.__init__) == positional("backend", "result")


def test_the_strategy_and_its_bases():
    assert inspect.isabstract(ProfilingTuneStrategy)
    assert issubclass(ProfilingTuneStrategy, FindMaxBatchSizeMixin)
    assert issubclass(ProfilingTuneStrategy, MultiBackendStrategy)
    assert set(ProfilingTuneStrategy.__abstractmethods__) == {"_measure", "_is_better", "_speedup"}


def test_the_constructor():
    assert parameters_of(ProfilingTuneStrategy.__init__) == (
        ("backends", POSITIONAL, None),
        ("profiling_config", POSITIONAL, None),
        ("kwargs", NAMED_REST, REQUIRED),
    )


@pytest.mark.parametrize("method", STRATEGY_METHODS, ids=lambda method: method.name)
def test_a_method(method):
    check_method(ProfilingTuneStrategy, method)


@pytest.mark.parametrize("method", STRATEGY_METHODS, ids=lambda method: method.name)
def test_the_walk_fails_when_a_method_is_missing_or_takes_other_parameters(method):
    assert_walk_fails_without(ProfilingTuneStrategy, method)


@pytest.mark.parametrize("name", sorted(STRATEGY_ATTRIBUTES))
def test_an_attribute_with_its_default(name):
    assert getattr(ProfilingTuneStrategy, name) == STRATEGY_ATTRIBUTES[name]
    assert type(getattr(ProfilingTuneStrategy, name)) is type(STRATEGY_ATTRIBUTES[name])


def test_the_paths_that_the_page_gives_for_its_types():
    from aitune.torch.backend import Backend
    from aitune.torch.module.graph_spec import GraphSpec
    from aitune.torch.module.recording_module import Sample
    from aitune.torch.task.profiling import ProfilingConfig

    hints = typing.get_type_hints(ProfilingTuneStrategy._measure)
    assert hints["backend"] is Backend
    assert hints["graph_spec"] is GraphSpec
    assert hints["data"] == list[Sample]
    assert hints["profiling_cfg"] is ProfilingConfig
    assert hints["return"] is BackendProfilingResult
    for name in ("BackendPerfResult", "BackendProfilingResult", "ProfilingTuneStrategy"):
        assert getattr(page, name).__module__.startswith("aitune.torch.tune_strategy.profiling_")


def test_the_two_default_workflows_are_there_to_be_called():
    for name in ("_default_aot_backends", "_default_jit_backends"):
        check_method(ProfilingTuneStrategy, Method(name, (("distributed", POSITIONAL, False),)))


@pytest.mark.parametrize("strategy", [MaxThroughputStrategy, MinLatencyStrategy, LatencyBudgetStrategy])
def test_the_concrete_implementations(strategy):
    assert issubclass(strategy, ProfilingTuneStrategy)
    assert not inspect.isabstract(strategy)
    assert all(getattr(strategy, name) for name in ("_title", "_description", "_metric_label", "_metric_unit"))
