"""One run of the original module, and what it did beside answering."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from aitune.torch.module.graph_spec import GraphSpec
from aitune.torch.module.preserved_state import preserved_state
from aitune.torch.task.comparison import as_real_float64
from aitune.torch.task.corner_inputs import LabelledCall
from aitune.torch.task.structure import clone_tensors, tensors_with_locators


@dataclass(frozen=True)
class OriginalRun:
    """What the original module did with one call.

    Args:
        label: The call.
        output: What it returned, in memory of its own.
        inputs_after: Each input tensor as the forward leaves it; ``None`` where it leaves it alone.
        shares_input: For each output tensor, whether it shared memory with an input.
        buffers_after: The buffers that it changed, as it left them.
    """

    label: LabelledCall
    output: Any
    inputs_after: tuple[torch.Tensor | None, ...]
    shares_input: tuple[bool, ...]
    buffers_after: Mapping[str, torch.Tensor]


def run_original(module: torch.nn.Module, graph_spec: GraphSpec, label: LabelledCall, seed: int) -> OriginalRun:
    """Run the original module once; its state and the call are as before when this returns.

    Args:
        module: The original module.
        graph_spec: The graph.
        label: The call.
        seed: Seed of torch's random generators.

    Raises:
        AITuneUserInputError: The forward changes a parameter in place.
        Exception: Whatever the module raises, as it is.
    """
    before = graph_spec.input_tensors(*label.call)
    call = clone_tensors(label.call)
    with preserved_state(module) as changes, torch.no_grad():
        torch.manual_seed(seed)
        output = module(*call.args, **call.kwargs)
        after = graph_spec.input_tensors(*call)
        shares = tuple(shares_memory(tensor, after) for _, tensor in tensors_with_locators(output))
        output = clone_tensors(output)
    changed = tuple(None if same_values(old, new) else new for old, new in zip(before, after, strict=True))
    return OriginalRun(label, output, changed, shares, changes.after)


def shares_memory(tensor: torch.Tensor, others: Iterable[torch.Tensor]) -> bool:
    """Whether a tensor and one of the others are views of one storage.

    Args:
        tensor: A tensor.
        others: The others.
    """
    pointer = _storage_pointer(tensor)
    return pointer != 0 and any(_storage_pointer(other) == pointer for other in others)


def _storage_pointer(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr() if tensor.layout is torch.strided else 0


def same_values(first: torch.Tensor, second: torch.Tensor) -> bool:
    """Whether two tensors have the same shape, dtype and values; NaN equals NaN.

    Args:
        first: A tensor.
        second: Another one.
    """
    if first.shape != second.shape or first.dtype != second.dtype:
        return False
    if not (first.is_floating_point() or first.is_complex()):
        return torch.equal(first, second)
    one, other = as_real_float64(first), as_real_float64(second)
    return bool(((one == other) | (one.isnan() & other.isnan())).all())
