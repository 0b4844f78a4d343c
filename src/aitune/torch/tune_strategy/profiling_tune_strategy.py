"""Shared base of the strategies that measure: profile the original module, then every candidate, and take the best."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import torch

from aitune.exceptions import AITuneError, AITuneUserInputError, ProfilingError, TuningError
from aitune.torch.backend.backend import Backend
from aitune.torch.backend.registry import registry
from aitune.torch.module.graph_spec import GraphSpec
from aitune.torch.module.sample import Sample
from aitune.torch.task.outcome import CandidateOutcome
from aitune.torch.task.profiling.config import ProfilingConfig
from aitune.torch.tune_strategy.build_cost import BuildCosts, ModelSize, load_packages
from aitune.torch.tune_strategy.candidate import describe_candidate, failed
from aitune.torch.tune_strategy.default_candidates import default_aot_candidates, default_jit_candidates
from aitune.torch.tune_strategy.graph_job import GraphJob
from aitune.torch.tune_strategy.hook_results import expect_kind, hook_name
from aitune.torch.tune_strategy.metric_strategy import MetricStrategy
from aitune.torch.tune_strategy.performance_validation import PerformanceValidationMode
from aitune.torch.tune_strategy.profiling_plan import plan_profiling
from aitune.torch.tune_strategy.profiling_result import (
    BASELINE_KEY,
    BackendPerfResult,
    BackendProfilingResult,
    _TuneCandidate,
    expect_candidate,
    metric_of,
    plain_entries,
)
from aitune.torch.tune_strategy.reasons import why_none_came_through, why_nothing_is_left
from aitune.torch.tune_strategy.selection import in_order, rank
from aitune.torch.tune_strategy.strategy_settings import profiling_settings
from aitune.torch.tune_strategy.time_plan import why_too_slow

__all__ = ["BASELINE_KEY", "BackendPerfResult", "BackendProfilingResult", "ProfilingTuneStrategy", "_TuneCandidate"]

_LIVE_AT_ONCE = 2
Strategy = TypeVar("Strategy", bound="ProfilingTuneStrategy")


class ProfilingTuneStrategy(MetricStrategy):
    """Base class for strategies that select a backend by a profiled metric.

    Subclasses set ``_title``, ``_description``, ``_metric_label`` (such as ``"throughput"``), ``_metric_unit`` (such as
    ``"samples/s"``) and ``_value_fmt`` (a format spec such as ``".2f"``), and implement :meth:`_measure`,
    :meth:`_is_better` and :meth:`_speedup`. These three alone make a strategy.

    The original module is profiled in :meth:`_pre_tune` as a baseline, apart from the list. With performance validation
    (the default) it stays when no candidate beats it; without, the best candidate wins regardless of speed, and it is
    an error when all fail. :meth:`_is_better` alone decides; a tie goes to the baseline, then to the first in the list.

    Args:
        backends: Candidates in order of preference; ``None`` takes the defaults.
        profiling_config: How candidates are profiled; ``None`` takes the batch sizes of the run, or powers of two.
        kwargs: Arguments of :class:`MultiBackendStrategy`.

    Raises:
        AITuneUserInputError: An argument is not usable.
    """

    _performance_validation_enabled: bool = True
    _baseline_backend: Backend | None = None
    _baseline_result: BackendProfilingResult | None = None
    perf_validation_results: list[BackendPerfResult] = []  # noqa: RUF012 - published; every run makes its own

    def __init__(
        self,
        backends: list[Backend] | None = None,
        profiling_config: ProfilingConfig | None = None,
        **kwargs: Any,
    ) -> None:
        if profiling_config is not None and not isinstance(profiling_config, ProfilingConfig):
            raise AITuneUserInputError(f"profiling_config must be a ProfilingConfig, got {profiling_config!r}")
        self._profiling_config = profiling_config
        self._validation_mode = PerformanceValidationMode.ENABLED
        super().__init__(backends, **kwargs)

    def _reset(self) -> None:
        super()._reset()
        self._baseline_backend = None
        self._baseline_result = None
        self.perf_validation_results = []
        self.strategy_results: dict[str, dict[str, int | float]] = {}
        self._last_error: Exception | None = None
        self._too_slow: str | None = None
        self._costs: BuildCosts | None = None

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

        Raises:
            AITuneUserInputError: It is none of these.
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
        return super()._resolve_default_backends()

    def _resolve_default_backends(self) -> list[Backend]:
        return self._checked(self._default_backends(), "_default_backends")

    # -- the baseline ----------------------------------------------------------------------------------------------

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
        context = self._context
        self._too_slow = why_too_slow(module, data[0], context.machine, context.seconds_left())
        if self._too_slow is None:
            super()._pre_tune(module, name, graph_spec, data, device, cache_dir)
        self._complete_preparation(GraphJob(module, name, graph_spec, data, device))

    def _complete_preparation(self, job: GraphJob) -> None:
        if self._too_slow is None:
            super()._complete_preparation(job)
        if self._validation_mode is not PerformanceValidationMode.DISABLED and self._baseline_backend is None:
            self._profile_baseline(job)
        baseline = self._baseline_candidate()
        if baseline is not None and BASELINE_KEY not in self._outcomes:
            expect_candidate(baseline, f"as the baseline {hook_name(self, '_pre_tune')}")

    def _profile_baseline(self, job: GraphJob) -> None:
        backend = registry.load("TorchEager")()
        outcome = replace(describe_candidate(backend, is_baseline=True), key=BASELINE_KEY)
        self._say_stage(job, outcome.description, "measure")
        baseline = backend.build(job.module, job.graph_spec, job.data, job.device, self._make_folder(outcome.key))
        baseline.activate()
        self._accept(baseline)
        self._baseline_backend = self._live[BASELINE_KEY] = baseline
        config = self._profiling_config_for(job.graph_spec.batching, job.graph_spec.get_max_batch_size())
        began = time.perf_counter()
        try:
            self._baseline_result = self._measure_baseline(baseline, job, config)
        except AITuneError:
            raise
        except Exception as error:
            # An error of the user's model, or of the measurement: no candidate can be judged without it.
            raise ProfilingError(
                f"{job.name} {job.graph_spec.name}: the original module could not be measured: "
                f"{type(error).__name__}: {error}"
            ) from error
        outcome = replace(outcome, status="ok", stage="measure", measure_seconds=time.perf_counter() - began)
        self._record(job, replace(outcome, measurements=self._measurements.get(BASELINE_KEY, ())))

    def _measure_baseline(
        self, backend: Backend, job: GraphJob, config: ProfilingConfig
    ) -> BackendProfilingResult | None:
        """Measure the original module; a subclass whose metric it may not have returns ``None``."""
        return self._measured(backend, job, config)

    def _measured(self, backend: Backend, job: GraphJob, config: ProfilingConfig) -> BackendProfilingResult:
        result = self._result_of(backend, job, config)
        self.strategy_results[self._key_of(backend)] = plain_entries(result, self._metric_label)
        return result

    def _baseline_candidate(self) -> _TuneCandidate | None:
        if self._baseline_backend is None or self._baseline_result is None:
            return None
        return _TuneCandidate(self._baseline_backend, self._baseline_result)

    @property
    def _opponent(self) -> _TuneCandidate | None:
        """The baseline, where it may win."""
        return self._baseline_candidate() if self._performance_validation_enabled else None

    def _key_of(self, backend: Backend) -> str:
        return BASELINE_KEY if backend is self._baseline_backend else backend.key()

    # -- the candidates --------------------------------------------------------------------------------------------

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
        if best is not None:
            expect_candidate(best, hook_name(self, "_run_backends"))
        winner = expect_candidate(self._resolve_winner(best), hook_name(self, "_resolve_winner"))
        if winner.backend is self._baseline_backend:
            with self._result_stands("_log_baseline_selected"):
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
        job = GraphJob(module, name, graph_spec, data, device)
        config = self._profiling_config_for(batching, max_batch_size)
        finalists: list[_TuneCandidate] = []
        costs = self._costs_for(job.module)
        for backend in sorted(self._backends, key=costs.rank):
            candidate = self._try_candidate(backend, job, config)
            if candidate is None:
                continue
            kept = self._shortlist([*finalists, candidate])[:_LIVE_AT_ONCE]
            for beaten in (each for each in [*finalists, candidate] if each not in kept):
                self._release(self._key_of(beaten.backend))
            finalists = kept
        self._outcomes = in_order(self._outcomes, [backend.key() for backend in self._backends])
        return self._choose_finalist(sorted(finalists, key=self._place), job) if finalists else None

    def _try_candidate(self, backend: Backend, job: GraphJob, config: ProfilingConfig) -> _TuneCandidate | None:
        """Build, check and profile one candidate; ``None`` when it is out, with the reason in its outcome."""
        costs = self._costs_for(job.module)
        no_time = self._too_slow or costs.why_no_time(
            backend, self.backend_results, self._context.seconds_left(), self._reference_seconds
        )
        if no_time is not None:
            self._record(job, replace(describe_candidate(backend), reason=no_time))
            return None
        load_packages(backend)
        evaluated = self._evaluate(backend, job)
        costs.learn(evaluated.outcome)
        if evaluated.backend is None:
            self._last_error = evaluated.error
            return None
        return self._profile_candidate(evaluated.backend, evaluated.outcome, job, config)

    def _costs_for(self, module: torch.nn.Module) -> BuildCosts:
        if self._costs is None:
            self._costs = BuildCosts(ModelSize.of(module), self._context.cost_history)
        return self._costs

    def _profile_candidate(
        self, backend: Backend, outcome: CandidateOutcome, job: GraphJob, config: ProfilingConfig
    ) -> _TuneCandidate | None:
        self._say_stage(job, outcome.description, "measure")
        began = time.perf_counter()
        error: Exception | None = None
        candidate: _TuneCandidate | None = None
        try:
            result = self._measured(backend, job, config)
            if not backend.is_active:
                raise ProfilingError("the backend was deactivated while it was measured; expected it to stay active")
            candidate = _TuneCandidate(backend, result)
            self._screen(candidate, job)
            self._record_perf_result(backend, result)
        except Exception as raised:
            error = raised
        seconds = time.perf_counter() - began
        outcome = replace(outcome, measurements=self._measurements.get(outcome.key, ()), measure_seconds=seconds)
        if error is not None:
            self._drop(outcome, error, job)
            return None
        self._record(job, replace(outcome, stage="measure"))
        return candidate

    def _drop(self, outcome: CandidateOutcome, error: Exception, job: GraphJob) -> None:
        """Put a candidate out that failed while it was measured."""
        self._last_error = error
        self._record(job, failed(outcome, "measure", error))
        self._release(outcome.key)

    def _record_perf_result(self, backend: Backend, result: BackendProfilingResult) -> None:
        """Appends a BackendPerfResult for the given backend if a baseline is available."""
        baseline = self._baseline_result
        if baseline is None:
            return
        self.perf_validation_results.append(
            BackendPerfResult(
                backend_description=backend.describe(),
                metric=metric_of(result),
                baseline_metric=metric_of(baseline),
                speedup=self._speedup_of(result, baseline),
                passed=self._is_better_result(result, baseline),
            )
        )

    # -- the choice ------------------------------------------------------------------------------------------------

    def _shortlist(self, candidates: Sequence[_TuneCandidate]) -> list[_TuneCandidate]:
        """Sort candidates best first, and leave out those that cannot win."""
        return rank(sorted(candidates, key=self._place), self._is_better_candidate, self._opponent)

    def _place(self, candidate: _TuneCandidate) -> int:
        return self._position(candidate.backend)

    def _screen(self, candidate: _TuneCandidate, job: GraphJob) -> None:
        """Compare a candidate with the baseline side by side; a hook that paired strategies fill."""

    def _choose_finalist(self, finalists: Sequence[_TuneCandidate], job: GraphJob) -> _TuneCandidate | None:
        """Choose among the best candidates, in the order of the list."""
        return next(iter(self._shortlist(finalists)), None)

    def _resolve_winner(self, best: _TuneCandidate | None) -> _TuneCandidate:
        """Returns the winning candidate, falling back to the TorchEager baseline when appropriate."""
        opponent = self._opponent
        if best is None and opponent is None:
            raise TuningError(why_nothing_is_left(self._outcomes.values(), self._backends))
        if opponent is None or (best is not None and self._is_better_candidate(best, opponent)):
            assert best is not None
            self._reason = self._why_won(best)
            return best
        self._reason = self._why_kept(best, opponent)
        return opponent

    def _why_won(self, best: _TuneCandidate) -> str:
        """Say in a few words why a candidate was chosen."""
        opponent = self._opponent
        beaten = "the best" if opponent is None else f"better than the original module's {self._metric_of(opponent)}"
        return f"its {self._metric_label or 'metric'} of {self._metric_of(best)} is {beaten}"

    def _why_kept(self, best: _TuneCandidate | None, baseline: _TuneCandidate) -> str:
        """Say in a few words why the original module stays."""
        if best is None:
            return why_none_came_through(self._outcomes.values(), self._backends)
        return (
            f"its {self._metric_label or 'metric'} of {self._metric_of(baseline)} is not beaten: the best candidate, "
            f"{best.backend.describe()}, has {self._metric_of(best)}"
        )

    def _post_tune(self, backend: Backend | None, name: str, graph_spec: GraphSpec, data: list[Sample]) -> None:
        """Emits a speedup line after tuning completes."""
        for result in self.perf_validation_results:
            if backend is not None and result.backend_description == backend.describe():
                self._log(
                    f"{name} {graph_spec.name}: {self._metric_label} {self._in_words(result.metric)}, "
                    f"{result.speedup:.2f}x the original module's {self._in_words(result.baseline_metric)}"
                )

    def _describe_parts(self) -> list[str]:
        """Returns the parts of the description."""
        title = [part for part in (self._title or type(self).__name__, self._description) if part]
        return [*title, *super()._describe_parts()[1:], f"performance validation: {self._validation_mode.value}"]

    def _log_baseline_selected(self, backend: Backend) -> None:
        """Emit an explicit message when the TorchEager baseline is the selected backend."""
        self._log(f"the original module ({backend.describe()}) stays: {self._reason}")

    def _get_profiling_config(self, batching: bool, max_batch_size: int) -> ProfilingConfig:
        """Gets profiling configuration; see :func:`plan_profiling` for the arguments."""
        named = None if self._find_max_batch_size is True else self._context.batch_sizes
        return plan_profiling(self._profiling_config, named, batching, max_batch_size)

    def _profiling_config_for(self, batching: bool, max_batch_size: int) -> ProfilingConfig:
        planned = self._get_profiling_config(batching, max_batch_size)
        return expect_kind(planned, ProfilingConfig, hook_name(self, "_get_profiling_config"), "a ProfilingConfig")

    def to_json_dict(self) -> dict[str, Any]:
        """Returns config dict for the strategy."""
        return {
            **super().to_json_dict(),
            "metric": self._metric_label,
            "performance_validation": self._validation_mode.value,
            "profiling_config": profiling_settings(self._profiling_config),
            "batch_sizes": None if self._context.batch_sizes is None else list(self._context.batch_sizes),
            "seed": self._context.seed,
        }
