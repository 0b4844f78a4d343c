"""Results of sweeps over batch sizes, and when a sweep is cut short."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from aitune.torch.task.outcome import BatchMeasurement, PairedComparison, Verdict
from aitune.torch.task.profiling.profiling_stop import ProfilingStopStrategy
from aitune.torch.task.profiling.results import ProfilingResultEvent
from aitune.torch.tune_strategy.profiling_result import BackendProfilingResult
from aitune.torch.tune_strategy.selection import verdict_between

_HOPELESS_SHARE = 0.5
_CATCHING_UP = 1.1


@dataclass
class SweepResult(BackendProfilingResult):
    """Result of a sweep over batch sizes.

    Args:
        selected_batch_size: Batch size that the metric holds for.
        swept: What was measured at each batch size.
        key: Key of the backend in the report.
        paired: Its paired comparisons, which count more than times taken apart.
    """

    swept: tuple[BatchMeasurement, ...] = field(default=())
    key: str = ""
    paired: tuple[PairedComparison, ...] = ()

    @property
    def selected(self) -> BatchMeasurement:
        """The measurement at the selected batch size."""
        return next(m for m in self.swept if m.batch_size == self.selected_batch_size)

    def verdict_against(self, other: BackendProfilingResult) -> Verdict | None:
        """Return what a paired comparison with another result said; ``None`` when there was none.

        Args:
            other: The other result.
        """
        if not isinstance(other, SweepResult):
            return None
        return verdict_between(self.key, other.key, self.paired)


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


@dataclass(frozen=True)
class CutShort(ProfilingStopStrategy):
    """Ends a sweep where a stop strategy says so, or where larger batch sizes cannot matter any more.

    Args:
        usual: The stop strategy.
        is_pointless: Whether larger batch sizes cannot matter, given what was measured so far, smallest first.
        why: What it means when they cannot.
    """

    usual: ProfilingStopStrategy
    is_pointless: Callable[[Sequence[BatchMeasurement]], bool]
    why: str

    def should_stop(self, events: Sequence[ProfilingResultEvent]) -> bool:
        """Say whether the sweep can end."""
        measured = [m for m in (event.measurement() for event in events) if m is not None]
        return self.usual.should_stop(events) or bool(measured and self.is_pointless(measured))

    def describe(self) -> str:
        """Say in a few words what it means when the sweep ends here."""
        return f"{self.usual.describe()}, or {self.why}"


def is_hopeless(swept: Sequence[BatchMeasurement], best: Mapping[int, BatchMeasurement]) -> bool:
    """Say whether a candidate is hopelessly behind: at two batch sizes in a row not half as fast, and not catching up.

    One batch size would not do: a fixed cost of each call, which makes a backend slow on a single sample, is spread
    over the samples of a larger batch.

    Args:
        swept: What was measured so far, smallest batch size first.
        best: The fastest measurement of others by batch size.
    """
    latest = swept[-2:]
    if len(latest) < 2 or any(measurement.batch_size not in best for measurement in latest):
        return False
    # The upper end of its speed: the lower end of its time.
    before, now = (best[measurement.batch_size].median_ms / measurement.low_ms for measurement in latest)
    return max(before, now) < _HOPELESS_SHARE and now < _CATCHING_UP * before
