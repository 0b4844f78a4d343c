"""Running in a lower precision and handing back the module's own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch.utils import _pytree as pytree

from aitune.exceptions import AITuneUserInputError
from aitune.torch.backend.backend_config import BackendConfig, require_switches
from aitune.torch.module.graph_spec import GraphSpec
from aitune.torch.module.tensor_spec import TensorSpec


@dataclass(frozen=True)
class AutocastConfig(BackendConfig):
    """Settings of autocast, for backends that call the module.

    Args:
        autocast_enabled: Whether operators run in ``autocast_dtype`` where torch holds that to be safe.
        autocast_dtype: The lower precision of autocast.

    Raises:
        AITuneUserInputError: ``autocast_enabled`` is no bool, or ``autocast_dtype`` no lower precision.
    """

    autocast_enabled: bool = False
    autocast_dtype: torch.dtype = torch.bfloat16

    def __post_init__(self) -> None:
        super().__post_init__()
        require_switches(self, "autocast_enabled")
        if self.autocast_dtype not in (torch.bfloat16, torch.float16):
            raise AITuneUserInputError(
                f"{type(self).__name__}: autocast_dtype must be torch.bfloat16 or torch.float16, "
                f"got {self.autocast_dtype!r}"
            )


def cast_outputs(output: Any, graph_spec: GraphSpec) -> Any:
    """Return an output with the dtypes that were recorded.

    Args:
        output: What the module returned under autocast.
        graph_spec: The graph.
    """
    leaves, structure = pytree.tree_flatten(output)
    expected = graph_spec.output_spec.leaves
    if len(leaves) != len(expected):
        return output
    cast = [
        leaf.to(spec.dtype) if isinstance(spec, TensorSpec) and isinstance(leaf, torch.Tensor) else leaf
        for leaf, spec in zip(leaves, expected, strict=True)
    ]
    return pytree.tree_unflatten(cast, structure)
