"""Backends that are wrong or fail on purpose, and a listener that remembers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal

import torch

from aitune.events import Event
from aitune.exceptions import ArtifactError
from aitune.torch.backend.backend import Backend
from aitune.torch.module.graph_spec import GraphSpec
from aitune.torch.module.sample import Sample

FailingStage = Literal["can_run", "build", "activate", "infer"]


class FakeBackend(Backend):
    """Runs the original module, and may change its answers or fail at a stage.

    Args:
        label: What it is called; part of its key.
        alter: Changes each output tensor.
        fails_at: Stage at which it raises RuntimeError, or (``"can_run"``) says that it cannot run.
        is_exact: Whether it says that it keeps the precision of the module.
    """

    needs_original_module: ClassVar[bool] = True
    recovery: ClassVar[Literal["artifact", "compile", "module"]] = "module"
    follows_weights = True

    def __init__(
        self,
        label: str = "fake",
        alter: Callable[[torch.Tensor], torch.Tensor] | None = None,
        fails_at: FailingStage | None = None,
        is_exact: bool = True,
    ) -> None:
        super().__init__()
        self.label = label
        self.is_exact = is_exact
        self._alter = alter
        self._fails_at = fails_at
        self._module: torch.nn.Module | None = None

    def key(self) -> str:
        """Return the label."""
        return f"Fake-{self.label}"

    def describe(self) -> str:
        """Return the label."""
        return f"Fake({self.label})"

    def can_run(self, module: torch.nn.Module, graph_spec: GraphSpec, device: torch.device) -> str | None:
        """Say that it cannot run, if that is its stage to fail."""
        return f"{self.label} cannot run on purpose" if self._fails_at == "can_run" else None

    def _fail_at(self, stage: FailingStage) -> None:
        if self._fails_at == stage:
            raise RuntimeError(f"{self.label} fails at {stage} on purpose")

    def _build(
        self, module: torch.nn.Module, graph_spec: GraphSpec, data: Sequence[Sample], cache_dir: Path
    ) -> Backend:
        self._fail_at("build")
        self._module = module
        return self

    def _activate(self) -> None:
        self._fail_at("activate")

    def _deactivate(self) -> None:
        """Nothing was loaded."""

    def _deploy(self) -> None:
        """Nothing is left from the build."""

    def _infer(self, *args: Any, **kwargs: Any) -> Any:
        self._fail_at("infer")
        run: Any = self._module
        with torch.no_grad():
            output = run(*args, **kwargs)
            if self._alter is None:
                return output
            tensors = self.graph_spec.output_spec.tensors_of(output)
            return self.graph_spec.make_output([self._alter(tensor.clone()) for tensor in tensors])

    def to_dict(self) -> dict[str, Any]:
        """Return its label; enough for a report, not to make it again."""
        return {"backend": self.name, "label": self.label, "graph": self.graph_spec.name}

    @classmethod
    def from_dict(cls, module: torch.nn.Module | None, state: dict[str, Any]) -> FakeBackend:
        """Refuse: a fake cannot be stored."""
        raise ArtifactError(f"a fake backend cannot be restored, got {state!r}")


def add_offset(tensor: torch.Tensor) -> torch.Tensor:
    """Add 0.01 to a float tensor; leave others."""
    return tensor + 1e-2 if tensor.is_floating_point() else tensor


def swap_first_rows(tensor: torch.Tensor) -> torch.Tensor:
    """Exchange the first two rows, where there are two."""
    if tensor.dim() == 0 or tensor.shape[0] < 2:
        return tensor
    return torch.cat([tensor[1:2], tensor[:1], tensor[2:]])


def to_float16(tensor: torch.Tensor) -> torch.Tensor:
    """Return a float tensor in another dtype than the module's."""
    return tensor.half() if tensor.is_floating_point() else tensor


def round_to_float16(tensor: torch.Tensor) -> torch.Tensor:
    """Lose precision, and keep the dtype."""
    return tensor.half().to(tensor.dtype) if tensor.is_floating_point() else tensor


def constant(tensor: torch.Tensor) -> torch.Tensor:
    """Return ones, whatever the input was."""
    return torch.ones_like(tensor)


class CollectingListener:
    """Remembers every event."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    def on_event(self, event: Event) -> None:
        """Take note of one event."""
        self.events.append(event)

    def of(self, kind: type[Event]) -> list[Any]:
        """Return the events of one kind, in order.

        Args:
            kind: The class.
        """
        return [event for event in self.events if isinstance(event, kind)]
