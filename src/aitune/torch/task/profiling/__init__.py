"""Time any callable, over one batch size or many."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aitune.utils.lazy_names import lazy_names

if TYPE_CHECKING:
    from aitune.torch.task.profiling.config import ProfilingConfig
    from aitune.torch.task.profiling.measuring import MeasuringStrategy, ModelExecutionTimeMeasuringStrategy
    from aitune.torch.task.profiling.measuring_stop import (
        MeasuringStopStrategy,
        NumStepsMeasuringStopStrategy,
        PrecisionMeasuringStopStrategy,
        StableWindowMeasuringStopStrategy,
    )
    from aitune.torch.task.profiling.profiling_stop import (
        AllSamplesProfilingStopStrategy,
        ProfilingStopStrategy,
        ThroughputSaturatedProfilingStopStrategy,
    )
    from aitune.torch.task.profiling.results import (
        ProfilingResultEvent,
        ProfilingResults,
        ProfilingStatus,
        get_throughput,
        is_throughput_saturated,
    )
    from aitune.torch.task.profiling.sweep import profile

__all__ = [
    "ProfilingConfig",
    "MeasuringStrategy",
    "ModelExecutionTimeMeasuringStrategy",
    "MeasuringStopStrategy",
    "NumStepsMeasuringStopStrategy",
    "PrecisionMeasuringStopStrategy",
    "StableWindowMeasuringStopStrategy",
    "AllSamplesProfilingStopStrategy",
    "ProfilingStopStrategy",
    "ThroughputSaturatedProfilingStopStrategy",
    "ProfilingResultEvent",
    "ProfilingResults",
    "ProfilingStatus",
    "get_throughput",
    "is_throughput_saturated",
    "profile",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "config": ("ProfilingConfig",),
        "measuring": (
            "MeasuringStrategy",
            "ModelExecutionTimeMeasuringStrategy",
        ),
        "measuring_stop": (
            "MeasuringStopStrategy",
            "NumStepsMeasuringStopStrategy",
            "PrecisionMeasuringStopStrategy",
            "StableWindowMeasuringStopStrategy",
        ),
        "profiling_stop": (
            "AllSamplesProfilingStopStrategy",
            "ProfilingStopStrategy",
            "ThroughputSaturatedProfilingStopStrategy",
        ),
        "results": (
            "ProfilingResultEvent",
            "ProfilingResults",
            "ProfilingStatus",
            "get_throughput",
            "is_throughput_saturated",
        ),
        "sweep": ("profile",),
    },
)
