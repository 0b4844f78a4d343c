"""What a sweep over batch sizes saw: raw times, and statistics derived from them."""

from __future__ import annotations

import enum
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from aitune.torch.task.outcome import BatchMeasurement
from aitune.torch.task.profiling.correlation import correlated_median_interval
from aitune.torch.task.profiling.statistics import percentile, percentile_upper
from aitune.torch.task.timed_call import NANOSECONDS


class ProfilingStatus(enum.Enum):
    """How one batch size ended."""

    SUCCESS = "success"
    OUT_OF_MEMORY = "out_of_memory"
    FAILED = "failed"
    SKIPPED = "skipped"


@dataclass(frozen=True)
class ProfilingResultEvent:
    """What was seen at one batch size.

    Args:
        batch_size: Samples in a call.
        status: How it ended.
        times_ns: What the clock gave, in order; each covers ``calls_per_time`` calls.
        calls_per_time: Calls that were timed together, more than 1 where a call is shorter than 50 µs.
        warmup_calls: Calls before the first timed one.
        seconds: Time spent, warming up included.
        reason: Why it was not measured, or what to know of the measurement.
    """

    batch_size: int
    status: ProfilingStatus
    times_ns: tuple[int, ...] = ()
    calls_per_time: int = 1
    warmup_calls: int = 0
    seconds: float = 0.0
    reason: str | None = None

    @property
    def execution_times(self) -> tuple[float, ...]:
        """Seconds of a call, one for each reading of the clock."""
        return tuple(time / (self.calls_per_time * NANOSECONDS) for time in self.times_ns)

    @property
    def num_calls(self) -> int:
        """Calls that were timed."""
        return len(self.times_ns) * self.calls_per_time

    def measurement(self) -> BatchMeasurement | None:
        """Return the statistics; ``None`` when nothing was timed."""
        if not self.times_ns:
            return None
        times_ms = [1000.0 * seconds for seconds in self.execution_times]
        low, high = correlated_median_interval(times_ms)
        return BatchMeasurement(
            batch_size=self.batch_size,
            median_ms=statistics.median(times_ms),
            p90_ms=percentile(times_ms, 0.90),
            p99_ms=percentile(times_ms, 0.99),
            low_ms=low,
            high_ms=high,
            num_calls=self.num_calls,
            p90_high_ms=percentile_upper(times_ms, 0.90),
            p99_high_ms=percentile_upper(times_ms, 0.99),
        )


@dataclass(frozen=True)
class ProfilingResults:
    """What a sweep over batch sizes saw.

    Args:
        events: One for each batch size that was looked at, smallest first.
        stop_reason: Why the sweep ended.
    """

    events: tuple[ProfilingResultEvent, ...]
    stop_reason: str

    def measurements(self) -> tuple[BatchMeasurement, ...]:
        """Return the statistics of every batch size that was measured, smallest first."""
        measured = (event.measurement() for event in self.events)
        return tuple(measurement for measurement in measured if measurement is not None)

    def notes(self) -> tuple[str, ...]:
        """Return what is worth knowing of each batch size: what it raised, that it was cut short, what it showed."""
        return tuple(f"batch size {event.batch_size}: {event.reason}" for event in self.events if event.reason)


def get_throughput(event: ProfilingResultEvent) -> float:
    """Return samples per second at the median time of a call; 0 when nothing was timed.

    Args:
        event: One batch size.
    """
    measurement = event.measurement()
    return 0.0 if measurement is None else measurement.throughput


def is_throughput_saturated(
    throughputs: Sequence[float], min_throughput_gain_ratio: float = 0.05, throughput_backoff_limit: int = 2
) -> bool:
    """Say whether larger batches stopped paying: the latest ones each gained too little over the best before them.

    Args:
        throughputs: Samples per second, smallest batch size first.
        min_throughput_gain_ratio: Gain that still pays, 0.05 is 5%.
        throughput_backoff_limit: How many in a row may fail to pay before it is called saturated.
    """
    best = 0.0
    without_gain = 0
    for throughput in throughputs:
        without_gain = without_gain + 1 if best and throughput < best * (1.0 + min_throughput_gain_ratio) else 0
        best = max(best, throughput)
    return without_gain >= throughput_backoff_limit
