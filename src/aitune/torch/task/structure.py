"""Compare nested outputs without looking at the numbers: containers, keys, leaves that are no tensors."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils import _pytree as pytree

from aitune.torch.module.containers import register_containers
from aitune.torch.module.locator import Locator, locator_from_key_path


@dataclass(frozen=True)
class StructureDifference:
    """The first place where two nested values are not built alike.

    Args:
        check: ``"structure"`` (keys, lengths), ``"type"`` or ``"value"`` (a leaf that is no tensor).
        locator: Where.
        got: What the candidate has there.
        expected: What the reference has there.
    """

    check: str
    locator: Locator
    got: str
    expected: str


def find_structure_difference(reference: Any, candidate: Any, locator: Locator = ()) -> StructureDifference | None:
    """Find the first place, from the outside in, where two nested values are not built alike.

    A tensor matches any tensor; the class of every container counts (a list is no tuple, a dict is no ``ModelOutput``);
    leaves that are no tensors must have the same type and value.

    Args:
        reference: What the original module returned.
        candidate: What the candidate returned.
        locator: Where the two sit in the output.
    """
    if isinstance(reference, torch.Tensor) and isinstance(candidate, torch.Tensor):
        return None
    if type(reference) is not type(candidate):
        return StructureDifference("type", locator, _type_name(candidate), _type_name(reference))
    expected, got = children_of(reference), children_of(candidate)
    if expected is None or got is None:
        if _same_leaf(reference, candidate):
            return None
        return StructureDifference("value", locator, repr(candidate), repr(reference))
    if list(expected) != list(got):
        return StructureDifference("structure", locator, _describe_keys(got), _describe_keys(expected))
    for key, child in expected.items():
        found = find_structure_difference(child, got[key], (*locator, key))
        if found is not None:
            return found
    return None


def children_of(value: Any) -> dict[str | int, Any] | None:
    """Return what a container holds, by key, one level deep; ``None`` for a leaf.

    Args:
        value: Nested values.
    """
    register_containers(value)
    with_paths, _ = pytree.tree_flatten_with_path(value, is_leaf=lambda inner: inner is not value)
    if len(with_paths) == 1 and not with_paths[0][0]:
        return None
    return {locator_from_key_path(path)[0]: child for path, child in with_paths}


def tensors_with_locators(value: Any) -> list[tuple[Locator, torch.Tensor]]:
    """Return the tensors of nested values with their places, in the order of the structure.

    Args:
        value: Nested values.
    """
    register_containers(value)
    with_paths, _ = pytree.tree_flatten_with_path(value)
    return [(locator_from_key_path(path), leaf) for path, leaf in with_paths if isinstance(leaf, torch.Tensor)]


def clone_tensors(value: Any) -> Any:
    """Return nested values with every tensor copied and detached; everything else is shared.

    Args:
        value: Nested values.
    """
    register_containers(value)
    return pytree.tree_map_only(torch.Tensor, lambda tensor: tensor.detach().clone(), value)


def _same_leaf(reference: Any, candidate: Any) -> bool:
    if isinstance(reference, float) and isinstance(candidate, float):
        # A number that the forward took out of a tensor carries the rounding of a float32 computation.
        both_nan = math.isnan(reference) and math.isnan(candidate)
        return both_nan or math.isclose(reference, candidate, rel_tol=1e-5, abs_tol=1e-5)
    return repr(reference) == repr(candidate) or reference is candidate


def _type_name(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return "Tensor"
    return type(value).__qualname__


def _describe_keys(children: dict[str | int, Any]) -> str:
    if all(isinstance(key, int) for key in children):
        return f"{len(children)} entries"
    return f"keys {list(children)}"
