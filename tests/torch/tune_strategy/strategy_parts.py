"""Modules, backends and strategies whose speed is made up, so that every choice is the same on every machine."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from aitune.testing.fakes import FakeBackend
from aitune.testing.graphs import call, record_graph
from aitune.testing.simulated_machine import TYPICAL, Noise, SimulatedMachine
from aitune.torch.backend.backend import Backend
from aitune.torch.module.graph_spec import GraphSpec
from aitune.torch.module.sample import Sample
from aitune.torch.task.outcome import PairedComparison
from aitune.torch.task.playoff import PlayoffConfig
from aitune.torch.tune_strategy.context import TuningContext
from aitune.torch.tune_strategy.profiling_tune_strategy import (
    BASELINE_KEY,
    BackendProfilingResult,
    ProfilingTuneStrategy,
)
from aitune.torch.tune_strategy.tune_strategy import TuneStrategy

CPU = torch.device("cpu")
ORIGINAL = "TorchEager"


class TimedNet(torch.nn.Module):
    """A linear layer that takes simulated time."""

    def __init__(self, machine: SimulatedMachine, seconds: float = 0.005, per_sample: float = 0.0) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(4, 3)
        self.machine = machine
        self.work = lambda batch: machine.work(seconds + per_sample * batch)

    def answer(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.linear(x))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.work(x.shape[0])
        return self.answer(x)


class TimedBackend(FakeBackend):
    """Answers as a :class:`TimedNet`, in another simulated time."""

    def __init__(
        self,
        label: str,
        machine: SimulatedMachine,
        seconds: float,
        per_sample: float = 0.0,
        *,
        build_seconds: float = 0.0,
        build_takes: float = 0.0,
        fails_after: int | None = None,
        state: dict[str, bool] | None = None,
    ) -> None:
        super().__init__(label)
        self._machine, self._seconds, self._per_sample = machine, seconds, per_sample
        self._build_seconds, self._build_takes = build_seconds, build_takes
        self._calls_left = fails_after
        self._state = {} if state is None else state

    def _build(self, module: Any, graph_spec: GraphSpec, data: Sequence[Sample], cache_dir: Path) -> Backend:
        time.sleep(self._build_seconds)
        self._machine.work(self._build_takes)
        return super()._build(module, graph_spec, data, cache_dir)

    def _infer(self, x: torch.Tensor) -> torch.Tensor:
        self._calls_left = None if self._calls_left is None else self._calls_left - 1
        if self._state.get("broken") or (self._calls_left is not None and self._calls_left < 0):
            raise RuntimeError(f"{self.label} is worn out")
        self._machine.work(self._seconds + self._per_sample * x.shape[0])
        module: Any = self._module
        with torch.no_grad():
            output: torch.Tensor = module.answer(x)
        return output


class DTensor(torch.nn.Parameter):
    """Only its name makes a module look spread over several processes."""


class DistributedNet(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = DTensor(torch.ones(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.weight


@dataclass
class Scored(BackendProfilingResult):
    score: float

    @property
    def metric(self) -> float:
        return self.score


class ByTable(ProfilingTuneStrategy):
    """Only the three hooks that are abstract: the score of a backend stands in a table; 5% more is better."""

    _metric_label = "score"
    _metric_unit = "points"

    def __init__(self, table: Mapping[str, Any], backends: list[Backend] | None = None, **kwargs: Any) -> None:
        self.table = dict(table)
        super().__init__(backends, **kwargs)

    def _measure(
        self, backend: Backend, name: str, graph_spec: GraphSpec, data: list[Sample], profiling_cfg: Any
    ) -> Any:
        entry = self.table[backend.describe()]
        if isinstance(entry, BaseException):
            raise entry
        if callable(entry):
            entry = entry(backend)
        return entry if entry is None or isinstance(entry, str) else Scored(1, entry)

    def _is_better(self, result: BackendProfilingResult, other: BackendProfilingResult) -> bool:
        return result.metric > 1.05 * other.metric

    def _speedup(self, result: BackendProfilingResult, baseline_result: BackendProfilingResult) -> float:
        return result.metric / baseline_result.metric


def fakes(*labels: str) -> list[Backend]:
    return [FakeBackend(label) for label in labels]


def graph_of(module: torch.nn.Module, batch_sizes: Sequence[int] = (2, 4)) -> tuple[GraphSpec, list[Sample]]:
    generator = torch.Generator().manual_seed(0)
    return record_graph(module, [call(torch.randn(size, 4, generator=generator)) for size in batch_sizes])


def context(machine: SimulatedMachine | None = None, **settings: Any) -> TuningContext:
    chosen = {"batch_sizes": (2, 4), "playoff": PlayoffConfig(num_threads=1), **settings}
    return TuningContext(**chosen) if machine is None else TuningContext(**chosen, machine=machine)


def run(
    strategy: TuneStrategy,
    folder: Path,
    module: torch.nn.Module | None = None,
    batch_sizes: Sequence[int] = (2, 4),
) -> Backend:
    """Tune one graph and return the winner."""
    module = (module if module is not None else torch.nn.Linear(4, 3)).eval()
    graph_spec, data = graph_of(module, batch_sizes)
    return strategy.tune(module, "net", graph_spec, data, CPU, folder)


def with_context(strategy: Any, machine: SimulatedMachine | None = None, **settings: Any) -> Any:
    strategy.use_context(context(machine, **settings))
    return strategy


def outcome_of(strategy: TuneStrategy, label: str) -> Any:
    return next(outcome for outcome in strategy.backend_results if outcome.description == f"Fake({label})")


class Bench:
    """A simulated machine, an original of 5 ms a call, and candidates."""

    def __init__(
        self, folder: Path, noise: Noise = TYPICAL, seed: int = 0, seconds: float = 0.005, per_sample: float = 0.0
    ) -> None:
        self.machine = SimulatedMachine(noise, seed)
        self.net = TimedNet(self.machine, seconds, per_sample)
        self.folder = folder

    def backend(self, label: str, seconds: float, per_sample: float = 0.0, **settings: Any) -> TimedBackend:
        return TimedBackend(label, self.machine, seconds, per_sample, **settings)

    def tune(
        self,
        strategy: TuneStrategy,
        batch_sizes: Sequence[int] = (2, 4),
        recorded: Sequence[int] = (2, 4),
        **context: Any,
    ) -> str:
        with_context(strategy, self.machine, batch_sizes=batch_sizes, **context)
        return run(strategy, self.folder, self.net, recorded).describe()


def comparison(strategy: TuneStrategy, candidate: str, opponent: str = BASELINE_KEY) -> PairedComparison:
    pair = (f"Fake-{candidate}", opponent)
    assert strategy.report is not None
    return next(c for c in strategy.report.comparisons if (c.candidate, c.opponent) == pair)
