from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import pytest
import torch
from torch import nn

from aitune.testing.graphs import record_graph
from aitune.torch.backend.backend import Backend
from aitune.torch.module.sample import Sample

Build: TypeAlias = Callable[..., Any]


@pytest.fixture(scope="class", autouse=True)
def one_thread() -> Iterator[None]:
    """Let builds that a class shares see the number of threads that its tests run with: compiled code depends on it."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def build(tmp_path: Path) -> Build:
    """Build a backend for some calls of a module, and activate it."""

    def make(backend: Backend, module: nn.Module, calls: Sequence[Sample], **options: Any) -> Any:
        graph_spec, data = record_graph(module, calls, **options)
        built = backend.build(module, graph_spec, data, torch.device("cpu"), tmp_path)
        built.activate()
        return built

    return make


class Branch(nn.Module):
    """Takes one of two ways, by the values of its input: torch.export refuses it."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 2 if x.sum() > 0 else -x


class Unexportable(nn.Module):
    """Does what any trace can follow, but not while torch.export watches."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if torch.compiler.is_compiling():
            raise RuntimeError("not for exporters")
        return x * 2


class Unused(nn.Module):
    """Does not use its first and third input."""

    def forward(self, a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, d: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return b - d, d


class Odd(nn.Module):
    """Outputs that are a scalar, an input, a weight, and whole numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.arange(3.0))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return x.sum(), x, self.weight, x.argmax(-1), x > 0


@pytest.fixture
def branch() -> nn.Module:
    return Branch()


@pytest.fixture
def unexportable() -> nn.Module:
    return Unexportable()


@pytest.fixture
def unused() -> nn.Module:
    return Unused()


@pytest.fixture
def odd() -> nn.Module:
    return Odd()
