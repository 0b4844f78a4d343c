"""What the tuned module knows of a backend."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from aitune.torch.module.graph_spec import GraphSpec


class Servable(Protocol):
    """What the tuned module needs of a backend.

    A backend that also has ``run_tensors(tensors)`` is called with the flat list of input tensors.
    """

    @property
    def runs_original(self) -> bool:
        """Whether a call may as well go straight to the original module."""

    @property
    def follows_weights(self) -> bool:
        """Whether a change of the module's weights shows in the answers."""

    @property
    def equal_symbols(self) -> Sequence[Sequence[str]]:
        """Groups of symbols of the graph that must have the same value."""

    def infer(self, *args: Any, **kwargs: Any) -> Any:
        """Run one call."""

    @property
    def is_active(self) -> bool:
        """Whether it can be run now."""

    def activate(self) -> None:
        """Load what is needed to run."""

    def deactivate(self) -> None:
        """Free what was loaded."""

    def deploy(self, device: torch.device | str | None = None) -> None:
        """Become ready to serve for good."""

    def to_dict(self) -> dict[str, Any]:
        """Return what it can be made from again."""

    def describe(self) -> str:
        """Return a short text for people."""


@dataclass(frozen=True)
class TunedGraph:
    """One graph and what serves it.

    Args:
        spec: The graph.
        backend: What was chosen for it.
    """

    spec: GraphSpec
    backend: Servable
