"""A backend that serves what a module answered when it was tuned, and a strategy that chooses it."""

import copy
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from aitune.exceptions import BuildError
from aitune.torch.module.graph_spec import GraphSpec
from aitune.torch.module.recording_module import recorded_batch_size
from aitune.torch.module.sample import Sample
from aitune.torch.module.wrapper_module import Module


class Net(torch.nn.Module):
    """A linear layer with an optional mask and a keyword-only factor."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(3, 2)

    def forward(self, x: torch.Tensor, mask: torch.Tensor | None = None, *, scale: float = 1.0) -> torch.Tensor:
        y = self.linear(x) * scale
        return y if mask is None else y * mask[:, None]


class FakeServable:
    """Runs a copy of the module, with the weights that it had."""

    def __init__(
        self,
        module: torch.nn.Module,
        graph_spec: GraphSpec,
        runs_original: bool = False,
        follows_weights: bool = False,
        equal_symbols: Sequence[Sequence[str]] = (),
        answer: Callable[..., Any] | None = None,
    ) -> None:
        self.module = module if follows_weights else copy.deepcopy(module)
        self.graph_spec = graph_spec
        self.runs_original = runs_original
        self.follows_weights = follows_weights
        self.equal_symbols = equal_symbols
        self.is_active = True
        self.answer = answer or self.module

    def infer(self, *args: Any, **kwargs: Any) -> Any:
        assert self.is_active
        with torch.no_grad():
            return self.answer(*args, **kwargs)

    def activate(self) -> None:
        self.is_active = True

    def deactivate(self) -> None:
        self.is_active = False

    def deploy(self, device: torch.device | str | None = None) -> None:
        self.is_active = True

    def to_dict(self) -> dict[str, Any]:
        return {"graph": self.graph_spec.name}

    def describe(self) -> str:
        return "Fake"


class FlatServable(FakeServable):
    """Is called with the list of tensors."""

    def run_tensors(self, tensors: Sequence[torch.Tensor]) -> Any:
        args, kwargs = self.graph_spec.make_call(list(tensors))
        return self.infer(*args, **kwargs)


class FakeTuner:
    """A strategy that makes one kind of backend, and fails for the graphs that are named."""

    def __init__(self, kind: type[FakeServable] = FakeServable, fails_for: Sequence[str] = (), **options: Any) -> None:
        self.kind = kind
        self.fails_for = fails_for
        self.options = options
        self.made: list[FakeServable] = []
        self.dry: list[str] = []

    def tune(
        self,
        module: torch.nn.Module,
        name: str,
        graph_spec: GraphSpec,
        data: list[Sample],
        device: torch.device,
        cache_dir: Path,
    ) -> FakeServable:
        if graph_spec.name in self.fails_for:
            raise BuildError(f"{graph_spec.name} fails on purpose")
        self.made.append(self.kind(module, graph_spec, **self.options))
        return self.made[-1]

    def tune_dry_run(
        self,
        module: torch.nn.Module,
        name: str,
        graph_spec: GraphSpec,
        data: list[Sample],
        device: torch.device,
        cache_dir: Path,
    ) -> None:
        self.dry.append(graph_spec.name)


def call(*args: Any, **kwargs: Any) -> Sample:
    return Sample(args, kwargs)


def record(module: torch.nn.Module, *calls: Sample, **settings: Any) -> Module:
    """Wrap a module and record calls; the batch size is the first size of the first tensor."""
    wrapped = Module(module, **settings)
    wrapped.enable_recording(force=True)
    for args, kwargs in calls:
        tensors = [leaf for leaf in torch.utils._pytree.tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        size = tensors[0].shape[0] if tensors and tensors[0].dim() else None
        with torch.no_grad(), recorded_batch_size(size):
            wrapped(*args, **kwargs)
    return wrapped


def tuned(
    module: torch.nn.Module,
    *calls: Sample,
    kind: type[FakeServable] = FakeServable,
    settings: Any = None,
    **options: Any,
) -> Module:
    """Wrap a module, record calls, and let fakes serve their graphs."""
    wrapped = record(module.eval(), *calls, **(settings or {}))
    wrapped.tune(strategy=FakeTuner(kind, **options))
    return wrapped


def served(wrapped: Module) -> int:
    return sum(wrapped.stats().served.values())
