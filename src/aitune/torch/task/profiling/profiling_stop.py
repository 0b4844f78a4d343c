"""When a sweep over batch sizes is done."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

from aitune.torch.task.profiling.results import ProfilingResultEvent, get_throughput, is_throughput_saturated
from aitune.utils.validation import number_at_least, positive_integer


class ProfilingStopStrategy(ABC):
    """Decides, after each batch size, whether larger ones are worth measuring; it keeps nothing between questions."""

    @abstractmethod
    def should_stop(self, events: Sequence[ProfilingResultEvent]) -> bool:
        """Say whether the sweep can end.

        Args:
            events: The batch sizes measured so far, smallest first, at least one.
        """

    @abstractmethod
    def describe(self) -> str:
        """Say in a few words what it means when the sweep ends here."""


@dataclass(frozen=True)
class AllSamplesProfilingStopStrategy(ProfilingStopStrategy):
    """Measures every batch size."""

    def should_stop(self, events: Sequence[ProfilingResultEvent]) -> bool:
        """Return ``False``."""
        return False

    def describe(self) -> str:
        """Say in a few words what it means when the sweep ends here."""
        return "every batch size was measured"


@dataclass(frozen=True)
class ThroughputSaturatedProfilingStopStrategy(ProfilingStopStrategy):
    """Ends the sweep when throughput no longer grows.

    Args:
        min_throughput_gain_ratio: Gain over the best so far that still pays.
        throughput_backoff_limit: How many batch sizes in a row may fail to pay.

    Raises:
        AITuneUserInputError: A number is out of range.
    """

    min_throughput_gain_ratio: float = 0.05
    throughput_backoff_limit: int = 2

    def __post_init__(self) -> None:
        number_at_least(self.min_throughput_gain_ratio, "min_throughput_gain_ratio", 0.0)
        positive_integer(self.throughput_backoff_limit, "throughput_backoff_limit")

    def should_stop(self, events: Sequence[ProfilingResultEvent]) -> bool:
        """Say whether throughput is saturated."""
        throughputs = [get_throughput(event) for event in events]
        return is_throughput_saturated(throughputs, self.min_throughput_gain_ratio, self.throughput_backoff_limit)

    def describe(self) -> str:
        """Say in a few words what it means when the sweep ends here."""
        return (
            f"throughput is saturated: {self.throughput_backoff_limit} batch sizes in a row gained less than "
            f"{self.min_throughput_gain_ratio:.0%}"
        )
