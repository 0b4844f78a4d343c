"""Says which outputs are not memory of their own: a change of one then shows in the other, after tuning no longer."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils import _pytree as pytree

from aitune.torch.module.locator import Locator, format_locator, locator_from_key_path
from aitune.torch.module.module_parts import joined, named_parts, plain_tensors, registered_tensors

_MOST_ELEMENTS = 100_000
_MOST_SAID = 3


def describe_shared_outputs(output: Any, inputs: Any, module: torch.nn.Module | None = None) -> str | None:
    """Say in words which outputs are not memory of their own; ``None`` when all are.

    Args:
        output: What the forward returned, of containers that torch's pytree knows.
        inputs: The named arguments.
        module: The module, for its parameters, buffers and tensors in attributes.
    """
    shared = shared_outputs(output, inputs, module)
    if not shared:
        return None
    more = f" and {len(shared) - _MOST_SAID} more" if len(shared) > _MOST_SAID else ""
    return (
        f"{', '.join(shared[:_MOST_SAID])}{more}: a backend may return a copy, so a change of one in place need "
        f"not show in the other after tuning; clone an output before you change it in place"
    )


def shared_outputs(output: Any, inputs: Any, module: torch.nn.Module | None = None) -> list[str]:
    """Say which tensors of an output share memory with an input, with a weight, or with each other.

    Args:
        output: What the forward returned, of containers that torch's pytree knows.
        inputs: The named arguments.
        module: The module, for its parameters, buffers and tensors in attributes.

    Returns:
        A few words for each output that does, ``[]`` when every output has memory of its own.
    """
    known = [(f"argument {format_locator(locator)}", tensor) for locator, tensor in _tensors(inputs)]
    known += [(f"weight {name}", tensor) for name, tensor in _weights(module)]
    said = []
    for locator, tensor in _tensors(output):
        place = format_locator(locator)
        other = next((name for name, known_tensor in known if _overlap(tensor, known_tensor)), None)
        if other is not None:
            said.append(f"{place} shares the memory of {other}")
        known.append((place, tensor))
    return said


def _weights(module: torch.nn.Module | None) -> list[tuple[str, torch.Tensor]]:
    return [
        (joined(path, name), tensor)
        for path, part in ([] if module is None else named_parts(module))
        for name, tensor in (*registered_tensors(part), *plain_tensors(part))
    ]


def _tensors(tree: Any) -> list[tuple[Locator, torch.Tensor]]:
    leaves, _ = pytree.tree_flatten_with_path(tree)
    return [(locator_from_key_path(path), leaf) for path, leaf in leaves if isinstance(leaf, torch.Tensor)]


def _overlap(one: torch.Tensor, other: torch.Tensor) -> bool:
    if one is other:
        return True
    if one.layout is not torch.strided or other.layout is not torch.strided or not one.numel() or not other.numel():
        return False
    if one.is_meta or one.untyped_storage().data_ptr() != other.untyped_storage().data_ptr():
        return False
    if one.element_size() != other.element_size() or max(one.numel(), other.numel()) > _MOST_ELEMENTS:
        return True
    # Columns of one matrix lie between each other without sharing an element.
    return bool(torch.isin(_offsets(one), _offsets(other)).any())


def _offsets(tensor: torch.Tensor) -> torch.Tensor:
    """Return where in its storage each element lies."""
    offsets = torch.tensor([tensor.storage_offset()])
    for size, stride in zip(tensor.shape, tensor.stride(), strict=True):
        offsets = (offsets[:, None] + torch.arange(size) * stride).reshape(-1)
    return offsets
