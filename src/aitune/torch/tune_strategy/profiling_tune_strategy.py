"""Shared base of the strategies that measure: profile the original module, then every candidate, and take the best."""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import torch

from aitune.exceptions import ProfilingError, TuningError
from aitune.torch.backend.backend import Backend
from aitune.torch.backend.registry import registry
from aitune.torch.module.graph_spec import GraphSpec
from aitune.torch.module.recording_module import Sample
from aitune.torch.task.outcome import BatchMeasurement, CandidateOutcome
from aitune.torch.task.profiling.config import ProfilingConfig
from aitune.torch.tune_strategy.candidate import describe_candidate, failed
from aitune.torch.tune_strategy.default_candidates import default_aot_candidates, default_jit_candidates
from aitune.torch.tune_strategy.multi_backend_strategy import MultiBackendStrategy
from aitune.torch.tune_strategy.performance_validation import PerformanceValidationMode
from aitune.torch.tune_strategy.selection import rank

BASELINE_KEY = "baseline"
"""Key of the original module in reports; a candidate that runs it with other options has its own."""

_LIVE_AT_ONCE = 2
Strategy = TypeVar("Strategy", bound="ProfilingTuneStrategy")


@dataclass
class BackendPerfResult:
    """Profiled metric and speedup result for a single backend.

    Args:
        backend_description: The backend, for people.
        metric: Its metric.
        baseline_metric: The original module's metric.
        speedup: How many times faster it is; above 1 is faster.
        passed: Whether it may replace the original module.
    """

    backend_description: str
    metric: float
    baseline_metric: float
    speedup: float
    passed: bool


@dataclass
class BackendProfilingResult(ABC):
    """Profiled backend result returned by profiling strategies.

    Args:
        selected_batch_size: Batch size that the metric holds for.
    """

    selected_batch_size: int

    @property
    @abstractmethod
    def metric(self) -> float:
        """Returns the scalar metric used to compare candidates."""

    @property
    def measurements(self) -> tuple[BatchMeasurement, ...]:
        """What was measured at each batch size, for the report; a subclass that has it overrides this."""
        return ()

    def to_json_dict(self, metric_label: str) -> dict[str, int | float]:
        """Returns fields stored in strategy_results for this backend.

        Args:
            metric_label: Name of the metric.
        """
        return {"selected_batch_size": self.selected_batch_size, metric_label: self.metric}


@dataclass
class _TuneCandidate:
    backend: Backend
    result: BackendProfilingResult


class ProfilingTuneStrategy(MultiBackendStrategy):
    """Base class for strategies that select a backend by a profiled metric.

    Subclasses set ``_title``, ``_description``, ``_metric_label`` (such as ``"throughput"``), ``_metric_unit`` (such as
    ``"samples/s"``) and ``_value_fmt`` (a format spec such as ``".2f"``), and implement :meth:`_measure`,
    :meth:`_is_better` and :meth:`_speedup`. These three alone make a strategy.

    The original module is profiled in :meth:`_pre_tune` as a baseline and is not in the list of candidates. With
    performance validation (the default) it stays when no candidate beats it; without, the best candidate wins
    regardless of speed, and the strategy raises when all fail.

    Args:
        backends: Candidates in order of preference; ``None`` takes the defaults.
        profiling_config: How candidates are profiled; ``None`` takes the batch sizes of the run, or powers of two.
        kwargs: Arguments of :class:`MultiBackendStrategy`.
    """

    _title: str = ""
    _description: str = ""
    _metric_label: str = ""
    _metric_unit: str = ""
    _value_fmt: str = ".2f"
    _performance_validation_enabled: bool = True
    _baseline_backend: Backend | None = None
    _baseline_result: BackendProfilingResult | None = None
    perf_validation_results: list[BackendPerfResult]

    def __init__(
        self,
        backends: list[Backend] | None = None,
        profiling_config: ProfilingConfig | None = None,
        **kwargs: Any,
    ) -> None:
        self._profiling_config = profiling_config
        self._validation_mode = PerformanceValidationMode.ENABLED
        self._module: torch.nn.Module | None = None
        super().__init__(backends, **kwargs)

    def _reset(self) -> None:
        super()._reset()
        self._baseline_backend = None
        self._baseline_result = None
        self.perf_validation_results = []
        self._last_error: Exception | None = None

    # -- settings --------------------------------------------------------------------------------------------------

    def enable_performance_validation(
        self: Strategy, enable: bool | str | PerformanceValidationMode = True
    ) -> Strategy:
        """Enables or disables baseline validation.

        Args:
            enable: ``True`` or ``"enabled"``, ``False`` or ``"disabled"``, or ``"diagnostic"``: the baseline is
                measured and reported, and does not choose.

        Returns:
            The strategy, so that calls chain.
        """
        self._validation_mode = PerformanceValidationMode.of(enable)
        self._performance_validation_enabled = self._validation_mode is PerformanceValidationMode.ENABLED
        return self

    def _default_aot_backends(self, distributed: bool = False) -> list[Backend]:
        return default_aot_candidates(self._kind, distributed)

    def _default_jit_backends(self, distributed: bool = False) -> list[Backend]:
        return default_jit_candidates(self._kind, distributed)

    def _default_backends(self) -> list[Backend]:
        """Returns default backends."""
        return MultiBackendStrategy._resolve_default_backends(self)

    def _resolve_default_backends(self) -> list[Backend]:
        return self._default_backends()

    # -- the run ---------------------------------------------------------------------------------------------------

    def _pre_tune(
        self,
        module: torch.nn.Module,
        name: str,
        graph_spec: GraphSpec,
        data: list[Sample],
        device: torch.device,
        cache_dir: Path,
    ) -> None:
        """Calls super()._pre_tune() (finds max batch size) then profiles TorchEager as baseline."""
        super()._pre_tune(module, name, graph_spec, data, device, cache_dir)
        self._module = module
        if self._validation_mode is PerformanceValidationMode.DISABLED:
            return
        backend = registry.load("TorchEager")()
        outcome = replace(describe_candidate(backend, is_baseline=True), key=BASELINE_KEY)
        self._say_stage(outcome.description, name, graph_spec, "measure")
        # What it raises is an error of the user's model, not of a candidate.
        baseline = backend.build(module, graph_spec, data, device, self._folders.make(outcome.key))
        baseline.activate()
        self._baseline_backend = baseline
        config = self._get_profiling_config(graph_spec.batching, graph_spec.get_max_batch_size())
        self._baseline_result = self._measure_baseline(baseline, name, graph_spec, data, config)
        measured = self._baseline_result.measurements if self._baseline_result is not None else ()
        self._record(name, graph_spec, replace(outcome, status="ok", stage="measure", measurements=measured))

    def _key_of(self, backend: Backend) -> str:
        return BASELINE_KEY if backend is self._baseline_backend else backend.key()

    def _end_run(self) -> None:
        super()._end_run()
        self._module = None

    def _measure_baseline(
        self, backend: Backend, name: str, graph_spec: GraphSpec, data: list[Sample], config: ProfilingConfig
    ) -> BackendProfilingResult | None:
        """Measure the original module; a subclass whose metric it may not have returns ``None``."""
        return self._measure(backend, name, graph_spec, data, config)

    def _tune(
        self,
        module: torch.nn.Module,
        name: str,
        graph_spec: GraphSpec,
        data: list[Sample],
        device: torch.device,
        cache_dir: Path,
    ) -> Backend:
        """Tunes given torch module with provided graph_spec and data."""
        best = self._run_backends(
            module, name, graph_spec, data, device, cache_dir, graph_spec.batching, graph_spec.get_max_batch_size()
        )
        winner = self._resolve_winner(best)
        if winner.backend is self._baseline_backend:
            self._log_baseline_selected(winner.backend)
        return winner.backend

    def _run_backends(  # noqa: PLR0913, PLR0917 - the published signature
        self,
        module: torch.nn.Module,
        name: str,
        graph_spec: GraphSpec,
        data: list[Sample],
        device: torch.device,
        cache_dir: Path,
        batching: bool,
        max_batch_size: int,
    ) -> _TuneCandidate | None:
        """Builds, validates, and profiles each backend; returns the best candidate."""
        config = self._get_profiling_config(batching, max_batch_size)
        finalists: list[_TuneCandidate] = []
        for backend in self._backends:
            if self._context.is_over():
                skipped = replace(describe_candidate(backend), reason="the time budget was spent before it was tried")
                self._record(name, graph_spec, skipped)
                continue
            candidate = self._try_candidate(backend, module, name, graph_spec, data, device, config)
            if candidate is not None:
                finalists = self._rank([*finalists, candidate])
                for beaten in finalists[_LIVE_AT_ONCE:]:
                    self._release(self._key_of(beaten.backend))
                finalists = finalists[:_LIVE_AT_ONCE]
        return self._choose_finalist(finalists, name, graph_spec, data) if finalists else None

    def _try_candidate(
        self,
        backend: Backend,
        module: torch.nn.Module,
        name: str,
        graph_spec: GraphSpec,
        data: list[Sample],
        device: torch.device,
        config: ProfilingConfig,
    ) -> _TuneCandidate | None:
        """Build, check and profile one candidate; ``None`` when it is out, with the reason in its outcome."""
        evaluated = self._evaluate(backend, module, name, graph_spec, data, device)
        if evaluated.backend is None:
            self._last_error = evaluated.error
            return None
        return self._profile_candidate(evaluated.backend, evaluated.outcome, name, graph_spec, data, config)

    def _profile_candidate(
        self, backend: Backend, outcome: CandidateOutcome, name: str, graph_spec: GraphSpec, data: list[Sample],
        config: ProfilingConfig,
    ) -> _TuneCandidate | None:  # fmt: skip
        self._say_stage(outcome.description, name, graph_spec, "measure")
        began = time.perf_counter()
        try:
            result = self._measure(backend, name, graph_spec, data, config)
            if not math.isfinite(result.metric) or result.metric <= 0:
                raise ProfilingError(
                    f"{self._metric_label or 'the metric'} is {result.metric}; expected a number above 0"
                )
            if not backend.is_active:
                raise ProfilingError("the backend was deactivated while it was measured")
        except Exception as error:
            self._last_error = error
            self._record(name, graph_spec, failed(outcome, "measure", error))
            self._release(outcome.key)
            return None
        self._record_perf_result(backend, result)
        measured = replace(
            outcome, stage="measure", measurements=result.measurements, measure_seconds=time.perf_counter() - began
        )
        candidate = _TuneCandidate(backend, result)
        self._screen(candidate, graph_spec, data)
        self._record(name, graph_spec, measured)
        return candidate

    def _rank(self, candidates: Sequence[_TuneCandidate]) -> list[_TuneCandidate]:
        """Sort candidates best first; of equal ones the one that comes first in the list stays first."""
        return rank(candidates, lambda one, other: self._is_better(one.result, other.result))

    def _screen(self, candidate: _TuneCandidate, graph_spec: GraphSpec, data: list[Sample]) -> None:
        """Compare a candidate with the baseline side by side, for the report; a hook that paired strategies fill."""

    def _choose_finalist(
        self, finalists: Sequence[_TuneCandidate], name: str, graph_spec: GraphSpec, data: list[Sample]
    ) -> _TuneCandidate:
        """Choose among the best candidates, best first; here the first, by :meth:`_is_better` alone."""
        self._reason = f"{self._metric_label or 'metric'} {self._fmt(finalists[0].result.metric)} is the best"
        return finalists[0]

    def _resolve_winner(self, best: _TuneCandidate | None) -> _TuneCandidate:
        """Returns the winning candidate, falling back to the TorchEager baseline when appropriate."""
        if not self._performance_validation_enabled:
            if best is None:
                raise TuningError(self._why_nothing())
            return best
        baseline = self._baseline_candidate()
        if best is None:
            if baseline is None:
                raise TuningError(self._why_nothing())
            self._reason = "no candidate came through: the original module stays"
            return baseline
        if baseline is None:
            return best
        return best if self._beats_baseline(best, baseline) else baseline

    def _beats_baseline(self, best: _TuneCandidate, baseline: _TuneCandidate) -> bool:
        """Say whether the best candidate replaces the baseline; here by :meth:`_is_better` alone."""
        if self._is_better(best.result, baseline.result):
            return True
        self._reason = (
            f"{self._metric_label or 'metric'} {self._fmt(best.result.metric)} of {best.backend.describe()} is not "
            f"better than {self._fmt(baseline.result.metric)} of the original module"
        )
        return False

    def _baseline_candidate(self) -> _TuneCandidate | None:
        if self._baseline_backend is None or self._baseline_result is None:
            return None
        return _TuneCandidate(self._baseline_backend, self._baseline_result)

    def _why_nothing(self) -> str:
        outcomes = [outcome for outcome in self._outcomes.values() if not outcome.is_baseline]
        if not outcomes:
            return "there is no candidate: the list of backends is empty, and performance validation is not enabled"
        reasons = "; ".join(f"{outcome.description}: {outcome.status}, {outcome.reason}" for outcome in outcomes)
        return f"no candidate is left to choose from: {reasons}"

    def _post_tune(self, backend: Backend | None, name: str, graph_spec: GraphSpec, data: list[Sample]) -> None:
        """Emits a speedup line after tuning completes."""
        for result in self.perf_validation_results:
            if backend is not None and result.backend_description == backend.describe():
                self._log(
                    f"{name} {graph_spec.name}: {self._metric_label} {self._fmt(result.metric)}, "
                    f"{result.speedup:.2f}x the original module's {self._fmt(result.baseline_metric)}"
                )

    def _record_perf_result(self, backend: Backend, result: BackendProfilingResult) -> None:
        """Appends a BackendPerfResult for the given backend if a baseline is available."""
        baseline = self._baseline_result
        if baseline is None:
            return
        self.perf_validation_results.append(
            BackendPerfResult(
                backend_description=backend.describe(),
                metric=result.metric,
                baseline_metric=baseline.metric,
                speedup=self._speedup(result, baseline),
                passed=self._is_better(result, baseline),
            )
        )

    def _get_profiling_config(self, batching: bool, max_batch_size: int) -> ProfilingConfig:
        """Gets profiling configuration.

        Args:
            batching: Whether the graph can be called with different batch sizes.
            max_batch_size: Largest batch size that may be measured.
        """
        given = self._profiling_config
        sizes: Sequence[int] = given.batch_sizes if given is not None else self._batch_sizes(max_batch_size)
        allowed = [size for size in sizes if size <= max_batch_size] or [max_batch_size]
        if given is not None:
            return replace(
                given, batch_sizes=allowed if batching else allowed[:1], batching=batching and given.batching
            )
        return ProfilingConfig(allowed if batching else allowed[:1], batching)

    def _batch_sizes(self, max_batch_size: int) -> list[int]:
        if self._context.batch_sizes is not None and self._find_max_batch_size is not True:
            return list(self._context.batch_sizes)
        sizes = [1]
        while sizes[-1] * 2 <= max_batch_size:
            sizes.append(sizes[-1] * 2)
        return sizes if sizes[-1] == max_batch_size else [*sizes, max_batch_size]

    # -- hooks -----------------------------------------------------------------------------------------------------

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

    # -- words -----------------------------------------------------------------------------------------------------

    def _fmt(self, value: float) -> str:
        """Formats a metric value with its unit, e.g. `12.34 samples/s`."""
        return f"{value:{self._value_fmt}} {self._metric_unit}".strip()

    def _describe_parts(self) -> list[str]:
        """Returns the parts of the description."""
        title = [part for part in (self._title or type(self).__name__, self._description) if part]
        return [*title, *super()._describe_parts()[1:], f"performance validation: {self._validation_mode.value}"]

    def _log_baseline_selected(self, backend: Backend) -> None:
        """Emit an explicit message when the TorchEager baseline is the selected backend."""
        self._log(f"the original module ({backend.describe()}) stays: {self._reason}")

    def to_json_dict(self) -> dict[str, Any]:
        """Returns config dict for the strategy."""
        config = self._profiling_config
        return {
            **super().to_json_dict(),
            "metric": self._metric_label,
            "performance_validation": self._validation_mode.value,
            "profiling_config": None
            if config is None
            else {
                "batch_sizes": list(config.batch_sizes),
                "batching": config.batching,
                "measuring_strategy": _named(config.measuring_strategy),
                "measurement_stop_strategy": _named(config.measurement_stop_strategy),
                "profiling_stop_strategy": _named(config.profiling_stop_strategy),
            },
        }


def _named(part: object) -> dict[str, Any] | None:
    if part is None:
        return None
    settings = {
        key.lstrip("_"): value for key, value in vars(part).items() if isinstance(value, int | float | str | None)
    }
    return {"class": type(part).__qualname__, **settings}
