"""How a winner is found."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aitune.utils.lazy_names import lazy_names

if TYPE_CHECKING:
    from aitune.torch.tune_strategy.first_wins_strategy import FirstWinsStrategy
    from aitune.torch.tune_strategy.latency_budget_strategy import LatencyBudgetStrategy
    from aitune.torch.tune_strategy.max_throughput_strategy import MaxThroughputStrategy
    from aitune.torch.tune_strategy.min_latency_strategy import MinLatencyStrategy
    from aitune.torch.tune_strategy.multi_backend_strategy import MultiBackendStrategy
    from aitune.torch.tune_strategy.one_backend_strategy import OneBackendStrategy
    from aitune.torch.tune_strategy.performance_validation import PerformanceValidationMode
    from aitune.torch.tune_strategy.profiling_tune_strategy import ProfilingTuneStrategy
    from aitune.torch.tune_strategy.tune_strategy import TuneStrategy

__all__ = [
    "TuneStrategy",
    "MultiBackendStrategy",
    "ProfilingTuneStrategy",
    "OneBackendStrategy",
    "FirstWinsStrategy",
    "MaxThroughputStrategy",
    "MinLatencyStrategy",
    "LatencyBudgetStrategy",
    "PerformanceValidationMode",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "tune_strategy": ("TuneStrategy",),
        "multi_backend_strategy": ("MultiBackendStrategy",),
        "profiling_tune_strategy": ("ProfilingTuneStrategy",),
        "one_backend_strategy": ("OneBackendStrategy",),
        "first_wins_strategy": ("FirstWinsStrategy",),
        "max_throughput_strategy": ("MaxThroughputStrategy",),
        "min_latency_strategy": ("MinLatencyStrategy",),
        "latency_budget_strategy": ("LatencyBudgetStrategy",),
        "performance_validation": ("PerformanceValidationMode",),
    },
)
