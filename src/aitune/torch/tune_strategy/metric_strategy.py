"""A strategy that judges backends by a figure: the hooks of its author, and the one checked way to call each."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

from aitune.exceptions import AITuneError, AITuneUserInputError, ProfilingError
from aitune.torch.backend.backend import Backend
from aitune.torch.module.graph_spec import GraphSpec
from aitune.torch.module.sample import Sample
from aitune.torch.task.profiling.config import ProfilingConfig
from aitune.torch.tune_strategy.graph_job import GraphJob
from aitune.torch.tune_strategy.hook_results import (
    as_number,
    expect_flag,
    expect_kind,
    hook_name,
    why_not_positive,
)
from aitune.torch.tune_strategy.multi_backend_strategy import MultiBackendStrategy
from aitune.torch.tune_strategy.profiling_result import (
    BackendProfilingResult,
    _TuneCandidate,
    metric_of,
    require_usable,
)


class MetricStrategy(MultiBackendStrategy):
    """Base of :class:`ProfilingTuneStrategy`: a metric, and what its author says about it.

    Args:
        args: Arguments of :class:`MultiBackendStrategy`.
        kwargs: Arguments of :class:`MultiBackendStrategy`.
    """

    _title: str = ""
    _description: str = ""
    _metric_label: str = ""
    _metric_unit: str = ""
    _value_fmt: str = ".2f"

    @abstractmethod
    def _measure(
        self,
        backend: Backend,
        name: str,
        graph_spec: GraphSpec,
        data: list[Sample],
        profiling_cfg: ProfilingConfig,
    ) -> BackendProfilingResult:
        """Profiles the backend and returns its result."""

    @abstractmethod
    def _is_better(self, result: BackendProfilingResult, other: BackendProfilingResult) -> bool:
        """Returns True when `result` is better than `other`."""

    @abstractmethod
    def _speedup(self, result: BackendProfilingResult, baseline_result: BackendProfilingResult) -> float:
        """Returns the speedup of `result` relative to `baseline_result` (>1 is faster)."""

    def _fmt(self, value: float) -> str:
        """Formats a metric value with its unit, e.g. `12.34 samples/s`."""
        return f"{value:{self._value_fmt}} {self._metric_unit}".strip()

    # -- the checked way to call them ------------------------------------------------------------------------------

    def _result_of(self, backend: Backend, job: GraphJob, config: ProfilingConfig) -> BackendProfilingResult:
        """Measure a backend.

        Raises:
            ProfilingError: What came back is no result, or its metric is not a number above 0.
            Exception: Whatever :meth:`_measure` raised.
        """
        measured = self._measure(backend, job.name, job.graph_spec, job.samples, config)
        return require_usable(measured, self._metric_label, hook_name(self, "_measure"))

    def _is_better_candidate(self, one: _TuneCandidate, other: _TuneCandidate) -> bool:
        return self._is_better_result(one.result, other.result)

    def _is_better_result(self, result: BackendProfilingResult, other: BackendProfilingResult) -> bool:
        """Ask :meth:`_is_better`.

        Raises:
            AITuneUserInputError: It raised, or returned no truth value.
        """
        hook = hook_name(self, "_is_better")
        try:
            answer = self._is_better(result, other)
        except AITuneError:
            raise
        except Exception as error:
            raise AITuneUserInputError(
                f"{hook} raised {type(error).__name__}: {error}; expected True or False"
            ) from error
        return expect_flag(answer, hook)

    def _speedup_of(self, result: BackendProfilingResult, baseline_result: BackendProfilingResult) -> float:
        """Ask :meth:`_speedup`.

        Raises:
            ProfilingError: It returned no number above 0.
            Exception: Whatever it raised.
        """
        speedup: Any = self._speedup(result, baseline_result)
        problem = why_not_positive(speedup)
        if problem is not None:
            raise ProfilingError(f"what {hook_name(self, '_speedup')} returned {problem}")
        return float(as_number(speedup) or 0.0)

    def _metric_of(self, candidate: _TuneCandidate) -> str:
        return self._in_words(metric_of(candidate.result))

    def _in_words(self, metric: float) -> str:
        """Ask :meth:`_fmt`; where it fails the number alone has to do."""
        with self._result_stands("_fmt"):
            return expect_kind(self._fmt(metric), str, hook_name(self, "_fmt"), "a str")
        return f"{metric:g}"
