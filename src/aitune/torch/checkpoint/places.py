"""Where tuned modules sit in a pipeline, and finding those places again in another one."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from aitune.artifact.manifest import StepRecord, format_place
from aitune.exceptions import ArtifactError
from aitune.torch.module.registry import module_registry
from aitune.torch.module.wrapper_module import Module

_DEEPEST = 8
_MOST_OBJECTS = 100_000
_PLAIN = (str, bytes, int, float, complex, bool, type(None), type, torch.Tensor, torch.dtype, torch.device)

Place = tuple[StepRecord, ...]


@dataclass(frozen=True)
class FoundModule:
    """A wrapped module and where it was found.

    Args:
        place: The way from the outermost object; empty when it is that object.
        wrapper: The wrapper.
    """

    place: Place
    wrapper: Module


def find_wrapped(root: Any) -> list[FoundModule]:
    """Find the wrapped modules in an object, nearest first, each once.

    Looked through are modules, mappings, sequences and the attributes of other objects.

    Args:
        root: A module or a pipeline.
    """
    pending: deque[tuple[Place, Any]] = deque([((), root)])
    seen: set[int] = set()
    found: list[FoundModule] = []
    while pending and len(seen) < _MOST_OBJECTS:
        place, value = pending.popleft()
        wrapper = value if _is_wrapper(value) else module_registry().wrapper_of(value)
        original = wrapper.original if wrapper is not None else value
        if id(original) in seen:
            continue
        seen.add(id(original))
        if wrapper is not None:
            found.append(FoundModule(place, wrapper))
        if len(place) < _DEEPEST or isinstance(original, torch.nn.Module):
            pending.extend(((*place, step), child) for step, child in _children(original))
    return found


def _is_wrapper(value: Any) -> bool:
    # isinstance would ask the proxy, which answers as the module does.
    return issubclass(type(value), Module)


def _children(value: Any) -> Iterator[tuple[StepRecord, Any]]:
    if isinstance(value, torch.nn.Module):
        members: Mapping[Any, Any] = {**value._modules}
        kind = "attribute"
    elif isinstance(value, Mapping):
        members, kind = value, "item"
    elif isinstance(value, Sequence) and not isinstance(value, str | bytes):
        members, kind = dict(enumerate(value)), "item"
    else:
        members, kind = getattr(value, "__dict__", {}), "attribute"
    for key, child in list(members.items()):
        if isinstance(key, str | int) and not isinstance(key, bool) and not isinstance(child, _PLAIN):
            yield StepRecord(kind=kind, key=key), child  # type: ignore[arg-type]


def module_at(root: Any, place: Place) -> torch.nn.Module:
    """Return the module at a place.

    Args:
        root: A module or a pipeline.
        place: The way to it, as :func:`find_wrapped` gave it.

    Raises:
        ArtifactError: There is no module at that place.
    """
    value = root
    for number, step in enumerate(place):
        if _is_wrapper(value):
            value = value.original
        # Only what is stored there is looked at: no property runs because a file names it.
        children = {(child.kind, child.key): member for child, member in _children(value)}
        if (step.kind, step.key) not in children:
            here = ", ".join(format_place((child,)) for child, _ in _children(value)) or "nothing"
            raise ArtifactError(
                f"the file holds a module at {format_place(place)}, and {format_place(place[:number])} has no "
                f"{format_place((step,))}, only {here[:500]}; give load the same kind of object that was saved"
            )
        value = children[step.kind, step.key]
    if not isinstance(value, torch.nn.Module):
        raise ArtifactError(
            f"the file holds a module at {format_place(place)}, where a {type(value).__qualname__} was given; give "
            f"load the same kind of object that was saved"
        )
    return value
