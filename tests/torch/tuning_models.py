"""Modules and backends for tests of whole runs: the original sleeps, so which one is faster is never in doubt."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

import aitune.torch as ait
from aitune.testing.fakes import FakeBackend
from aitune.torch.config import config
from aitune.torch.task.playoff import PlayoffConfig
from aitune.torch.task.profiling import NumStepsMeasuringStopStrategy, ProfilingConfig
from aitune.torch.tune_strategy.cost_history import FILE_NAME

SLEEP_SECONDS = 0.003


class SleepyNet(torch.nn.Module):
    """A linear layer that takes at least three milliseconds, unless it is asked to hurry."""

    def __init__(self, width: int = 4) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(width, width)
        self.hurry = False

    def forward(self, x: torch.Tensor, scale: torch.Tensor | None = None) -> dict[str, torch.Tensor]:
        if not self.hurry:
            time.sleep(SLEEP_SECONDS)
        y = torch.tanh(self.linear(x))
        return {"y": y if scale is None else y * scale, "sum": y.sum(-1)}


class HurryBackend(FakeBackend):
    """Runs a :class:`SleepyNet` without the sleep: right, and far faster."""

    def __init__(
        self, label: str = "hurry", alter: Callable[[torch.Tensor], torch.Tensor] | None = None, **kwargs: Any
    ) -> None:
        super().__init__(label, alter, **kwargs)

    def _infer(self, *args: Any, **kwargs: Any) -> Any:
        module: Any = self._module
        module.hurry = True
        try:
            return super()._infer(*args, **kwargs)
        finally:
            module.hurry = False


class QuickStrategy(ait.MaxThroughputStrategy):
    """The default strategy with shorter blocks and no rests: the differences here are too large to need more."""

    def _playoff_config(self) -> PlayoffConfig:
        return PlayoffConfig(block_seconds=0.005, pause_seconds=0.0, num_threads=1)

    def _get_profiling_config(self, batching: bool, max_batch_size: int) -> ProfilingConfig:
        profiling = super()._get_profiling_config(batching, max_batch_size)
        return replace(profiling, measurement_stop_strategy=NumStepsMeasuringStopStrategy(5, 2))


def hurry() -> QuickStrategy:
    """A strategy whose one candidate wins."""
    return QuickStrategy([HurryBackend()])


def wrapped(name: str = "net") -> Any:
    """A wrapped :class:`SleepyNet`."""
    return ait.Module(SleepyNet().eval(), name)


def cache_files() -> list[Path]:
    """Files of the cache, but for what it is to know about builds."""
    files = [path for path in config.resolve_cache_dir().rglob("*") if path.is_file()]
    # What builds took is kept on purpose; a fake takes long enough for that on a busy machine only.
    return [path for path in files if path.name != FILE_NAME]


def samples(count: int = 8, width: int = 4, seed: int = 0) -> Sequence[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(width, generator=generator) for _ in range(count)]


def plain_answer(module: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
    """What the class of a (wrapped) module answers, whatever was put on the object."""
    with torch.no_grad():
        return type(module).forward(module, *args, **kwargs)
