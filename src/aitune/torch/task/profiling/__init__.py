"""Time any callable, over one batch size or many."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from aitune.torch.task.profiling.config import ProfilingConfig as ProfilingConfig
    from aitune.torch.task.profiling.measuring import MeasuringStrategy as MeasuringStrategy
    from aitune.torch.task.profiling.measuring import (
        ModelExecutionTimeMeasuringStrategy as ModelExecutionTimeMeasuringStrategy,
    )
    from aitune.torch.task.profiling.measuring_stop import MeasuringStopStrategy as MeasuringStopStrategy
    from aitune.torch.task.profiling.measuring_stop import (
        NumStepsMeasuringStopStrategy as NumStepsMeasuringStopStrategy,
    )
    from aitune.torch.task.profiling.measuring_stop import (
        PrecisionMeasuringStopStrategy as PrecisionMeasuringStopStrategy,
    )
    from aitune.torch.task.profiling.measuring_stop import (
        StableWindowMeasuringStopStrategy as StableWindowMeasuringStopStrategy,
    )
    from aitune.torch.task.profiling.profiling_stop import (
        AllSamplesProfilingStopStrategy as AllSamplesProfilingStopStrategy,
    )
    from aitune.torch.task.profiling.profiling_stop import ProfilingStopStrategy as ProfilingStopStrategy
    from aitune.torch.task.profiling.profiling_stop import (
        ThroughputSaturatedProfilingStopStrategy as ThroughputSaturatedProfilingStopStrategy,
    )
    from aitune.torch.task.profiling.results import ProfilingResultEvent as ProfilingResultEvent
    from aitune.torch.task.profiling.results import ProfilingResults as ProfilingResults
    from aitune.torch.task.profiling.results import ProfilingStatus as ProfilingStatus
    from aitune.torch.task.profiling.results import get_throughput as get_throughput
    from aitune.torch.task.profiling.results import is_throughput_saturated as is_throughput_saturated
    from aitune.torch.task.profiling.sweep import profile as profile

_HOMES = {
    "ProfilingConfig": "config",
    "MeasuringStrategy": "measuring",
    "ModelExecutionTimeMeasuringStrategy": "measuring",
    "MeasuringStopStrategy": "measuring_stop",
    "NumStepsMeasuringStopStrategy": "measuring_stop",
    "PrecisionMeasuringStopStrategy": "measuring_stop",
    "StableWindowMeasuringStopStrategy": "measuring_stop",
    "AllSamplesProfilingStopStrategy": "profiling_stop",
    "ProfilingStopStrategy": "profiling_stop",
    "ThroughputSaturatedProfilingStopStrategy": "profiling_stop",
    "ProfilingResultEvent": "results",
    "ProfilingResults": "results",
    "ProfilingStatus": "results",
    "get_throughput": "results",
    "is_throughput_saturated": "results",
    "profile": "sweep",
}

__all__ = list(_HOMES)


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{home}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
