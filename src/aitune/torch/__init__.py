"""Tune PyTorch modules: ``import aitune.torch as ait``."""

from __future__ import annotations

from typing import TYPE_CHECKING

# Taken now and not on demand: the name is also that of the module that holds it.
from aitune.torch.config import config
from aitune.utils.lazy_names import lazy_names

if TYPE_CHECKING:
    from aitune.torch.checkpoint.container_classes import register_container
    from aitune.torch.config import aitune_cache_dir
    from aitune.torch.data import DataLoaderFactory
    from aitune.torch.dynamic_shapes import BatchDim, DynamicDim
    from aitune.torch.module.wrapper_module import Module, ModuleState
    from aitune.torch.report.tune_report import TuneReport
    from aitune.torch.saving import LocalTorchStorage, load, save
    from aitune.torch.task.accuracy_budget import AccuracyBudget
    from aitune.torch.tune_strategy.first_wins_strategy import FirstWinsStrategy
    from aitune.torch.tune_strategy.latency_budget_strategy import LatencyBudgetStrategy
    from aitune.torch.tune_strategy.max_throughput_strategy import MaxThroughputStrategy
    from aitune.torch.tune_strategy.min_latency_strategy import MinLatencyStrategy
    from aitune.torch.tune_strategy.one_backend_strategy import OneBackendStrategy
    from aitune.torch.tune_strategy.performance_validation import PerformanceValidationMode
    from aitune.torch.tune_strategy.tune_strategy import TuneStrategy
    from aitune.torch.tuning import tune

__all__ = [
    "Module",
    "ModuleState",
    "tune",
    "TuneReport",
    "save",
    "load",
    "LocalTorchStorage",
    "register_container",
    "BatchDim",
    "DynamicDim",
    "DataLoaderFactory",
    "AccuracyBudget",
    "TuneStrategy",
    "OneBackendStrategy",
    "FirstWinsStrategy",
    "MaxThroughputStrategy",
    "MinLatencyStrategy",
    "LatencyBudgetStrategy",
    "PerformanceValidationMode",
    "config",
    "aitune_cache_dir",
]

__getattr__, _names = lazy_names(
    __name__,
    {
        "module.wrapper_module": ("Module", "ModuleState"),
        "tuning": ("tune",),
        "saving": ("save", "load", "LocalTorchStorage"),
        "checkpoint.container_classes": ("register_container",),
        "report.tune_report": ("TuneReport",),
        "dynamic_shapes": ("BatchDim", "DynamicDim"),
        "data": ("DataLoaderFactory",),
        "task.accuracy_budget": ("AccuracyBudget",),
        "tune_strategy.tune_strategy": ("TuneStrategy",),
        "tune_strategy.one_backend_strategy": ("OneBackendStrategy",),
        "tune_strategy.first_wins_strategy": ("FirstWinsStrategy",),
        "tune_strategy.max_throughput_strategy": ("MaxThroughputStrategy",),
        "tune_strategy.min_latency_strategy": ("MinLatencyStrategy",),
        "tune_strategy.latency_budget_strategy": ("LatencyBudgetStrategy",),
        "tune_strategy.performance_validation": ("PerformanceValidationMode",),
        "config": ("aitune_cache_dir",),
    },
)


def __dir__() -> list[str]:
    return sorted(__all__)
