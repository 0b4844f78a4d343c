"""How written source looks into a container, without torch's pytree."""

from __future__ import annotations

import dataclasses
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils import _pytree as pytree

from aitune.torch.module.containers import container_kind, is_dynamic_cache


class NoAccessError(Exception):
    """The container is taken apart by functions of its own, which only the pytree calls."""


@dataclass(frozen=True)
class ContainerAccess:
    """How source looks into one container.

    Args:
        container: Class that it has to be of.
        conditions: Further conditions on it; ``{0}`` stands for its name.
        child: Gives the expression of a child from the container's name and the child's number.
        keys: Condition on the keys and their order, which count because a forward may go through a dict; ``{1}``
            stands for the list of the keys.
    """

    container: type[Any]
    conditions: tuple[str, ...]
    child: Callable[[str, int], str]
    keys: str | None = None


def children_of(structure: pytree.TreeSpec) -> list[pytree.TreeSpec]:
    """Return the structures inside a structure, in order.

    Args:
        structure: A container as torch's pytree describes it.
    """
    children = getattr(structure, "children", None)
    # torch 2.10 has the attribute ``children_specs``; later versions warn and offer the method ``children()``.
    return list(children()) if callable(children) else list(structure.children_specs)


def classes_of(structure: pytree.TreeSpec) -> list[type[Any]]:
    """Return the classes of the containers in a structure, from the outside in; structures compare them by name alone.

    Args:
        structure: Nested values as torch's pytree describes them.
    """
    if structure.is_leaf():
        return []
    # All named tuples are of one type, with their class as the context.
    own = structure.context if isinstance(structure.context, type) else structure.type
    return [own, *(cls for child in children_of(structure) for cls in classes_of(child))]


def caches_of_leaves(structure: pytree.TreeSpec) -> list[int | None]:
    """Return for each leaf which key-value cache it is part of, by number; ``None`` for one that is part of none.

    Args:
        structure: Nested values as torch's pytree describes them.
    """
    found: list[int | None] = []
    count = 0

    def walk(node: pytree.TreeSpec, cache: int | None) -> None:
        nonlocal count
        if node.is_leaf():
            found.append(cache)
            return
        if is_dynamic_cache(node.type):
            cache, count = count, count + 1
        for child in children_of(node):
            walk(child, cache)

    walk(structure, None)
    return found


def container_access(structure: pytree.TreeSpec) -> ContainerAccess:
    """Say how to look into a container.

    Args:
        structure: The container as torch's pytree describes it.

    Raises:
        NoAccessError: Only the pytree can take it apart.
    """
    kind, context = structure.type, structure.context
    if kind in (list, tuple, torch.Size):
        return ContainerAccess(kind, (f"_aitune_len({{0}}) == {len(children_of(structure))}",), "{}[{}]".format)
    if isinstance(context, type) and issubclass(context, tuple) and hasattr(context, "_fields"):
        return ContainerAccess(context, (), "{}[{}]".format)
    if not isinstance(context, list) or not all(type(key) is str for key in context):
        raise NoAccessError
    if kind in (dict, OrderedDict):
        return ContainerAccess(kind, (), lambda name, n: f"{name}[{context[n]!r}]", "[*{0}] == {1}")
    if container_kind(kind) == "user dict":
        return ContainerAccess(kind, (), lambda name, n: f"{name}.data[{context[n]!r}]", "[*{0}.data] == {1}")
    if container_kind(kind) == "dataclass":
        missing = [field.name for field in dataclasses.fields(kind) if field.name not in context]
        return ContainerAccess(
            kind,
            tuple(f"not _aitune_hasattr({{0}}, {name!r})" for name in missing),
            lambda name, n: f"_aitune_getattr({name}, {context[n]!r}, _aitune_absent)",
        )
    raise NoAccessError
