"""What the shipped profiling strategies share: sweeps of what is served, and decisions by paired comparison."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from aitune.exceptions import ProfilingError
from aitune.torch.backend.backend import Backend
from aitune.torch.config import config
from aitune.torch.module.graph_spec import GraphSpec
from aitune.torch.module.sample import Sample
from aitune.torch.module.tuned_module import TunedModule
from aitune.torch.task.outcome import BatchMeasurement
from aitune.torch.task.playoff import Contestant, PlayoffConfig, playoff, screen
from aitune.torch.task.profiling.config import ProfilingConfig
from aitune.torch.task.profiling.sweep import profile
from aitune.torch.tune_strategy.candidate import as_served
from aitune.torch.tune_strategy.profiling_tune_strategy import (
    BackendProfilingResult,
    ProfilingTuneStrategy,
    _TuneCandidate,
)
from aitune.torch.tune_strategy.selection import beats_baseline, choose_finalist


@dataclass
class SweepResult(BackendProfilingResult):
    """Result of a sweep over batch sizes.

    Args:
        selected_batch_size: Batch size that the metric holds for.
        swept: What was measured at each batch size.
    """

    swept: tuple[BatchMeasurement, ...] = field(default=())

    @property
    def measurements(self) -> tuple[BatchMeasurement, ...]:
        """What was measured at each batch size."""
        return self.swept

    @property
    def selected(self) -> BatchMeasurement:
        """The measurement at the selected batch size."""
        return next(m for m in self.swept if m.batch_size == self.selected_batch_size)


@dataclass
class ThroughputResult(SweepResult):
    """A sweep judged by samples per second."""

    @property
    def metric(self) -> float:
        """Samples per second at the selected batch size."""
        return self.selected.throughput

    @property
    def bounds(self) -> tuple[float, float]:
        """Interval of the samples per second."""
        samples = self.selected_batch_size * 1000.0
        return samples / self.selected.high_ms, samples / self.selected.low_ms


@dataclass
class LatencyResult(SweepResult):
    """A sweep judged by milliseconds a call."""

    @property
    def metric(self) -> float:
        """Median milliseconds of a call at the selected batch size."""
        return self.selected.median_ms

    @property
    def bounds(self) -> tuple[float, float]:
        """Interval of the median."""
        return self.selected.low_ms, self.selected.high_ms


class PairedProfilingStrategy(ProfilingTuneStrategy):
    """A profiling strategy whose decisions are made by paired comparisons of what will be served.

    A candidate replaces the baseline only when the interval of the paired ratio lies above 1 plus the minimum gain; on
    a tie the baseline stays, and between candidates the one that comes first in the list. The metric is the highest
    throughput over the batch sizes; subclasses measure something else.
    """

    _metric_label = "throughput"
    _metric_unit = "samples/s"
    _value_fmt = ".2f"

    def _measure(
        self,
        backend: Backend,
        name: str,
        graph_spec: GraphSpec,
        data: list[Sample],
        profiling_cfg: ProfilingConfig,
    ) -> BackendProfilingResult:
        """Profiles the backend and returns its result."""
        swept = self._sweep(backend, graph_spec, data, profiling_cfg)
        best = max(swept, key=lambda measurement: measurement.throughput)
        return ThroughputResult(best.batch_size, swept)

    def _is_better(self, result: BackendProfilingResult, other: BackendProfilingResult) -> bool:
        """Returns True when the interval of `result` lies above the one of `other`."""
        return cast(ThroughputResult, result).bounds[0] > cast(ThroughputResult, other).bounds[1]

    def _speedup(self, result: BackendProfilingResult, baseline_result: BackendProfilingResult) -> float:
        """Returns the speedup of `result` relative to `baseline_result` (>1 is faster)."""
        return result.metric / baseline_result.metric

    def _reset(self) -> None:
        super()._reset()
        self._served: dict[str, TunedModule] = {}

    def _end_run(self) -> None:
        super()._end_run()
        self._served.clear()

    def _release(self, key: str) -> None:
        self._served.pop(key, None)
        super()._release(key)

    def _sweep(
        self, backend: Backend, graph_spec: GraphSpec, data: list[Sample], profiling_cfg: ProfilingConfig
    ) -> tuple[BatchMeasurement, ...]:
        """Measure a backend, as it will be served, at each batch size.

        Raises:
            ProfilingError: Nothing could be measured, or calls fell back to the original module.
        """
        results = profile(
            self._callable(backend, graph_spec),
            _batch_maker(graph_spec, data),
            profiling_cfg,
            device=backend.device,
            copy_inputs=self._copy_inputs,
            deadline=self._context.deadline,
        )
        self._check_served(backend)
        return results.measurements()

    def _rank(self, candidates: Sequence[_TuneCandidate]) -> list[_TuneCandidate]:
        # By the figures alone: intervals of measurements taken apart say little, and the playoff decides.
        return sorted(candidates, key=lambda candidate: -self._speedup(candidate.result, candidates[0].result))

    @property
    def _copy_inputs(self) -> bool:
        return self._references is not None and self._references.modifies_inputs

    def _callable(self, backend: Backend, graph_spec: GraphSpec) -> Callable[..., Any]:
        assert self._module is not None, "a backend is measured only during a run"
        if backend.runs_original:
            return self._module
        key = self._key_of(backend)
        if key not in self._served:
            self._served[key] = as_served(self._module, graph_spec, backend)
        return self._served[key].module

    def _check_served(self, backend: Backend) -> None:
        """Make sure that the time was the backend's: a guard that lets nothing through would time the original."""
        served = self._served.get(self._key_of(backend))
        fallbacks = served.stats().fallbacks if served is not None else {}
        if fallbacks:
            raise ProfilingError(
                f"{backend.describe()} did not answer {sum(fallbacks.values())} calls itself ({', '.join(fallbacks)}), "
                f"so they cannot be counted for it"
            )

    # -- paired decisions ------------------------------------------------------------------------------------------

    def _playoff_config(self) -> PlayoffConfig:
        return self._context.playoff or PlayoffConfig(
            minimum_gain=config.minimum_gain, num_threads=config.num_threads, seed=self._context.seed
        )

    def _contestant(self, candidate: _TuneCandidate, graph_spec: GraphSpec, data: list[Sample]) -> Contestant:
        size = candidate.result.selected_batch_size
        return Contestant(
            self._key_of(candidate.backend),
            self._callable(candidate.backend, graph_spec),
            _batch_maker(graph_spec, data)(size),
            size,
            self._copy_inputs,
        )

    def _screen(self, candidate: _TuneCandidate, graph_spec: GraphSpec, data: list[Sample]) -> None:
        baseline = self._baseline_candidate()
        if baseline is not None:
            comparison = screen(
                self._contestant(candidate, graph_spec, data),
                self._contestant(baseline, graph_spec, data),
                self._playoff_config(),
                device=candidate.backend.device,
                deadline=self._context.deadline,
            )
            self._comparisons.append(comparison)

    def _choose_finalist(
        self, finalists: Sequence[_TuneCandidate], name: str, graph_spec: GraphSpec, data: list[Sample]
    ) -> _TuneCandidate:
        baseline = self._baseline_candidate()
        if baseline is None and len(finalists) == 1:
            self._reason = "the only candidate left"
            return finalists[0]
        by_key = {self._key_of(finalist.backend): finalist for finalist in finalists}
        for finalist in finalists:
            self._say_stage(finalist.backend.describe(), name, graph_spec, "playoff")
        contestants = [self._contestant(finalist, graph_spec, data) for finalist in finalists]
        opponent = contestants.pop() if baseline is None else self._contestant(baseline, graph_spec, data)
        decided = playoff(
            contestants,
            opponent,
            self._playoff_config(),
            device=finalists[0].backend.device,
            deadline=self._context.deadline,
        )
        for finalist in finalists:
            self._check_served(finalist.backend)
        compared = {(comparison.candidate, comparison.opponent) for comparison in decided}
        self._comparisons = [c for c in self._comparisons if (c.candidate, c.opponent) not in compared]
        self._comparisons.extend(decided)
        choice = choose_finalist(
            list(by_key),
            [backend.key() for backend in self._backends],
            self._comparisons,
            None if baseline is None else self._key_of(baseline.backend),
        )
        self._reason = choice.reason
        return by_key[choice.key]

    def _beats_baseline(self, best: _TuneCandidate, baseline: _TuneCandidate) -> bool:
        decision = beats_baseline(self._key_of(best.backend), self._key_of(baseline.backend), self._comparisons)
        if decision is None:
            return super()._beats_baseline(best, baseline)
        beats, reason = decision
        if not beats:
            self._reason = f"the original module stays: {best.backend.describe()} is not clearly faster ({reason})"
        elif not self._reason.startswith("faster than"):
            self._reason = f"{reason}; {self._reason}"
        return beats


def _batch_maker(graph_spec: GraphSpec, data: list[Sample]) -> Callable[[int], Sample]:
    """Return what makes the call of a batch size: a recorded one of that size, else the one nearest to it, resized."""

    def make(batch_size: int) -> Sample:
        nearest = min(data, key=lambda sample: abs(graph_spec.batch_size_of(sample) - batch_size))
        return graph_spec.make_batch(*nearest, batch_size)

    return make
