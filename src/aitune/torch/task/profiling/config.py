"""What is measured, and how."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from aitune.exceptions import AITuneUserInputError
from aitune.torch.task.profiling.measuring import MeasuringStrategy, ModelExecutionTimeMeasuringStrategy
from aitune.torch.task.profiling.measuring_stop import MeasuringStopStrategy, PrecisionMeasuringStopStrategy
from aitune.torch.task.profiling.profiling_stop import (
    ProfilingStopStrategy,
    ThroughputSaturatedProfilingStopStrategy,
)
from aitune.utils.validation import boolean, positive_integer

_KINDS: Mapping[str, type] = {
    "measuring_strategy": MeasuringStrategy,
    "measurement_stop_strategy": MeasuringStopStrategy,
    "profiling_stop_strategy": ProfilingStopStrategy,
}


@dataclass(frozen=True)
class ProfilingConfig:
    """Settings of a sweep over batch sizes.

    Args:
        batch_sizes: Batch sizes to measure, in any order; at least one.
        batching: Whether the callable takes different batch sizes; without that only the smallest one is measured.
        measuring_strategy: How one batch size is measured; ``None`` is :class:`ModelExecutionTimeMeasuringStrategy`.
        measurement_stop_strategy: When one batch size is done; ``None`` is :class:`PrecisionMeasuringStopStrategy`.
        profiling_stop_strategy: When the sweep is done; ``None`` is
            :class:`ThroughputSaturatedProfilingStopStrategy`.

    Raises:
        AITuneUserInputError: There is no batch size, one is not a positive integer, or a strategy is of another kind.
    """

    batch_sizes: Sequence[int]
    batching: bool = True
    measuring_strategy: MeasuringStrategy | None = None
    measurement_stop_strategy: MeasuringStopStrategy | None = None
    profiling_stop_strategy: ProfilingStopStrategy | None = None

    def __post_init__(self) -> None:
        if isinstance(self.batch_sizes, str) or not isinstance(self.batch_sizes, Sequence) or not self.batch_sizes:
            raise AITuneUserInputError(
                f"batch_sizes must be a sequence of at least one batch size, got {self.batch_sizes!r}"
            )
        sizes = tuple(positive_integer(size, "every batch size") for size in self.batch_sizes)
        object.__setattr__(self, "batch_sizes", sizes)
        boolean(self.batching, "batching")
        for name, kind in _KINDS.items():
            value = getattr(self, name)
            if value is not None and not isinstance(value, kind):
                raise AITuneUserInputError(f"{name} must be an instance of {kind.__name__}, got {value!r}")

    @property
    def sweep(self) -> tuple[int, ...]:
        """Batch sizes in the order in which they are measured: each once, upwards."""
        upwards = tuple(sorted(set(self.batch_sizes)))
        return upwards if self.batching else upwards[:1]

    @property
    def measuring(self) -> MeasuringStrategy:
        """The measuring strategy that holds."""
        return self.measuring_strategy or ModelExecutionTimeMeasuringStrategy()

    @property
    def measurement_stop(self) -> MeasuringStopStrategy:
        """The stop strategy of one batch size that holds."""
        return self.measurement_stop_strategy or PrecisionMeasuringStopStrategy()

    @property
    def profiling_stop(self) -> ProfilingStopStrategy:
        """The stop strategy of the sweep that holds."""
        return self.profiling_stop_strategy or ThroughputSaturatedProfilingStopStrategy()
