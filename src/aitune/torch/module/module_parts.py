"""What a module consists of, registered or not: layers in a list that is a plain attribute take part in the forward."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

import torch

_REGISTRIES = frozenset(vars(torch.nn.Module()))
_MAPPINGS = (dict, OrderedDict)
_SEQUENCES = (list, tuple, deque, set, frozenset)
_MOST_LEVELS = 4
# Of one attribute: a vocabulary is no list of layers, and this is walked while calls are served.
_MOST_ENTRIES = 1000


def named_parts(module: torch.nn.Module) -> list[tuple[str, torch.nn.Module]]:
    """Return a module and its submodules, each once, those in plain attributes and plain containers included.

    Args:
        module: The module; its own name is empty.
    """
    found = list(module.named_modules())
    seen = {id(part) for _, part in found}
    pending = list(found)
    while pending:
        name, part = pending.pop()
        for key, value in plain_values(part):
            if isinstance(value, torch.nn.Module) and id(value) not in seen:
                inner = [(joined(joined(name, key), path), below) for path, below in value.named_modules()]
                more = [(path, below) for path, below in inner if id(below) not in seen]
                seen.update(id(below) for _, below in more)
                found += more
                pending += more
    return found


def registered_tensors(part: torch.nn.Module) -> list[tuple[str, torch.Tensor]]:
    """Return the parameters and buffers of one module by name.

    Args:
        part: The module; its submodules are not included.
    """
    held = (*part._parameters.items(), *part._buffers.items())
    return [(name, tensor) for name, tensor in held if tensor is not None]


def plain_tensors(part: torch.nn.Module) -> list[tuple[str, torch.Tensor]]:
    """Return the tensors of one module that are neither parameters nor buffers, by name.

    Args:
        part: The module; its submodules are not included.
    """
    return [(key, value) for key, value in plain_values(part) if isinstance(value, torch.Tensor)]


def plain_values(part: torch.nn.Module) -> Iterator[tuple[str, Any]]:
    """Go through the attributes that torch does not manage, and through the plain containers among them.

    Nesting is followed four levels deep, and each attribute for its first thousand entries.

    Args:
        part: The module; its submodules are not included.

    Yields:
        Name, such as ``"tables['long'][0]"``, and value.
    """
    for name, value in list(vars(part).items()):
        if name not in _REGISTRIES:
            yield from _flattened(name, value, _MOST_LEVELS, iter(range(_MOST_ENTRIES)))


def _flattened(name: str, value: Any, levels: int, allowance: Iterator[int]) -> Iterator[tuple[str, Any]]:
    entries: Iterable[tuple[Any, Any]] | None = None
    if levels and type(value) in _MAPPINGS:
        entries = list(islice(value.items(), _MOST_ENTRIES))
    elif levels and (type(value) in _SEQUENCES or (isinstance(value, tuple) and hasattr(value, "_fields"))):
        entries = enumerate(list(islice(value, _MOST_ENTRIES)))
    if entries is None:
        yield name, value
        return
    # Empty containers count as well: a thousand of thousands of them have no value to stop at.
    for (key, item), _ in zip(entries, allowance, strict=False):
        yield from _flattened(f"{name}[{key!r}]", item, levels - 1, allowance)


def joined(name: str, key: str) -> str:
    """Return the name of something inside a module.

    Args:
        name: Name of the module, empty for the outermost.
        key: Name inside it, empty for the module itself.
    """
    return f"{name}.{key}" if name and key else name or key
