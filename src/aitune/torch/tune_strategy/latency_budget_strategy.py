"""The most samples per second among the batch sizes that answer in time."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal

from aitune.exceptions import AITuneUserInputError, ProfilingError, TuningError
from aitune.torch.backend.backend import Backend
from aitune.torch.module.graph_spec import GraphSpec
from aitune.torch.module.sample import Sample
from aitune.torch.task.outcome import BatchMeasurement
from aitune.torch.task.profiling.config import ProfilingConfig
from aitune.torch.task.profiling.measuring_stop import PrecisionMeasuringStopStrategy
from aitune.torch.task.profiling.statistics import calls_to_bound
from aitune.torch.tune_strategy.graph_job import GraphJob
from aitune.torch.tune_strategy.paired_strategy import PairedProfilingStrategy
from aitune.torch.tune_strategy.profiling_result import BASELINE_KEY, BackendProfilingResult, _TuneCandidate
from aitune.torch.tune_strategy.sweep_result import ThroughputResult
from aitune.utils.validation import positive_number

_SECONDS_FOR_A_TAIL = 5.0
"""Longest time of measuring one batch size, where a percentile far from the median is asked for."""


class LatencyBudgetStrategy(PairedProfilingStrategy):
    """Selects the highest throughput over the batch sizes whose latency is within a budget.

    A latency counts as within the budget when the upper end of its interval is, so that it is also found within when
    it is measured again. For a high percentile more calls are measured: 368 for the 99th, where they take
    less than five seconds; slower ones are judged by the longest call that was seen.

    Args:
        latency_budget_ms: Longest time that a call may take, in milliseconds.
        backends: Candidates in order of preference; ``None`` takes the defaults.
        profiling_config: How candidates are profiled; ``None`` takes the batch sizes of the run, or powers of two.
        percentile: Which latency has to be within the budget: the median, the 90th or the 99th percentile.
        kwargs: Arguments of the base classes.

    Raises:
        AITuneUserInputError: The budget is no positive number, or the percentile is none of these.
    """

    _title = "Latency budget"
    _description = "the most samples per second within a latency budget"

    def __init__(
        self,
        latency_budget_ms: float,
        backends: list[Backend] | None = None,
        profiling_config: ProfilingConfig | None = None,
        *,
        percentile: Literal[50, 90, 99] = 50,
        **kwargs: Any,
    ) -> None:
        self._latency_budget_ms = positive_number(latency_budget_ms, "latency_budget_ms", "number of milliseconds")
        if math.isinf(self._latency_budget_ms):
            raise AITuneUserInputError(
                "latency_budget_ms must be a finite number of milliseconds, got inf; without a budget use "
                "MaxThroughputStrategy"
            )
        if percentile not in (50, 90, 99):
            raise AITuneUserInputError(f"percentile must be 50, 90 or 99, got {percentile!r}")
        self._percentile = percentile
        super().__init__(backends, profiling_config, **kwargs)

    def _reset(self) -> None:
        super()._reset()
        self._best_latencies: dict[str, str] = {}

    def _get_profiling_config(self, batching: bool, max_batch_size: int) -> ProfilingConfig:
        """Gets profiling configuration that measures as many calls as the percentile asks for."""
        planned = super()._get_profiling_config(batching, max_batch_size)
        if self._percentile == 50 or planned.measurement_stop_strategy is not None:
            return planned
        enough = PrecisionMeasuringStopStrategy(
            min_samples=calls_to_bound(self._percentile / 100.0), max_seconds=_SECONDS_FOR_A_TAIL
        )
        return replace(planned, measurement_stop_strategy=enough)

    def _measure(
        self,
        backend: Backend,
        name: str,
        graph_spec: GraphSpec,
        data: list[Sample],
        profiling_cfg: ProfilingConfig,
    ) -> ThroughputResult:
        """Profiles the backend and returns its result."""
        swept = self._sweep(backend, graph_spec, data, profiling_cfg)
        within = [m for m in swept if self._longest_latency(m) <= self._latency_budget_ms]
        if not within:
            fastest = min(swept, key=self._longest_latency)
            best_latency = f"{self._latency(fastest):.3f} ms (up to {self._longest_latency(fastest):.3f} ms)"
            self._best_latencies[self._key_of(backend)] = best_latency
            raise ProfilingError(
                f"no batch size answers within {self._latency_budget_ms:g} ms: the best latency is {best_latency}"
            )
        best = max(within, key=lambda measurement: measurement.throughput)
        return ThroughputResult(best.batch_size, swept, self._key_of(backend))

    def _is_pointless(self, backend: Backend, swept: Sequence[BatchMeasurement]) -> bool:
        """Say whether larger batch sizes need not be measured: they take longer than this one, which is too long."""
        return self._latency(swept[-1]) > self._latency_budget_ms or super()._is_pointless(backend, swept)

    def _latency(self, measurement: BatchMeasurement) -> float:
        by_percentile = {50: measurement.median_ms, 90: measurement.p90_ms, 99: measurement.p99_ms}
        return by_percentile[self._percentile]

    def _longest_latency(self, measurement: BatchMeasurement) -> float:
        """Return the upper end of the interval of the latency: what it may be when it is measured again."""
        uppers = {50: measurement.high_ms, 90: measurement.p90_high_ms, 99: measurement.p99_high_ms}
        upper = uppers[self._percentile]
        return self._latency(measurement) if upper is None else upper

    def _measure_baseline(
        self, backend: Backend, job: GraphJob, config: ProfilingConfig
    ) -> BackendProfilingResult | None:
        """Measure the original module; outside the budget it cannot win, and anything within it does."""
        try:
            return super()._measure_baseline(backend, job, config)
        except ProfilingError:
            if BASELINE_KEY not in self._best_latencies:
                raise
            return None

    def _resolve_winner(self, best: _TuneCandidate | None) -> _TuneCandidate:
        """Returns the winning candidate; raises with every best latency when nothing is within the budget."""
        if best is None and self._opponent is None and self._best_latencies:
            names = self._names
            ends = [f"{names[key]}: {latency}" for key, latency in self._best_latencies.items()]
            others = [outcome for outcome in self.backend_results if outcome.key not in self._best_latencies]
            ends.extend(f"{names[o.key]}: {o.status}, {o.reason}" for o in others if o.reason is not None)
            raise TuningError(
                f"nothing answers within latency_budget_ms={self._latency_budget_ms:g} (percentile "
                f"{self._percentile}); best latencies: {'; '.join(ends)}; allow more, or record smaller batch sizes"
            )
        return super()._resolve_winner(best)

    def _why_won(self, best: _TuneCandidate) -> str:
        why = super()._why_won(best)
        if BASELINE_KEY in self._best_latencies:
            why = f"the original module does not answer within {self._latency_budget_ms:g} ms, this one does; {why}"
        return f"{why}; its best batch size within the budget is {best.result.selected_batch_size}"

    def to_json_dict(self) -> dict[str, Any]:
        """Returns config dict for the strategy."""
        return {
            **super().to_json_dict(),
            "latency_budget_ms": self._latency_budget_ms,
            "percentile": self._percentile,
        }
