"""What one run is about."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from aitune.torch.module.graph_spec import GraphSpec
from aitune.torch.module.sample import Sample


@dataclass(frozen=True)
class GraphJob:
    """One graph of one module, to be tuned.

    Args:
        module: The original module, without the hooks around it.
        name: Name of the module.
        graph_spec: The graph.
        data: Recorded calls of the graph.
        device: Device to run on.
    """

    module: torch.nn.Module
    name: str
    graph_spec: GraphSpec
    data: Sequence[Sample]
    device: torch.device

    @property
    def samples(self) -> list[Sample]:
        """The recorded calls, as the hooks of a strategy take them."""
        return list(self.data)
