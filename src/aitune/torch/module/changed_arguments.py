"""Forwards that put other values into their arguments, as key-value caches are filled.

A backend takes tensors and gives tensors. So such a graph is tuned as a function that leaves its arguments alone and
returns them, as they are after the call, beside the output; a served call puts them back where the caller has them.
"""

from __future__ import annotations

import dataclasses
from collections import OrderedDict, UserDict
from collections.abc import Mapping, Sequence
from operator import is_
from typing import Any, TypeAlias

import torch
from torch.utils import _pytree as pytree

from aitune.torch.module.containers import is_dynamic_cache
from aitune.torch.module.graph_spec import GraphSpec

_MARK = "aitune: the argument "


Contents: TypeAlias = dict[str, tuple[list[Any], pytree.TreeSpec]]
"""What arguments hold, by name: the leaves, and how they are nested."""


def contents_of(named: Mapping[str, Any]) -> Contents:
    """Return what arguments hold now.

    Args:
        named: The arguments.
    """
    return {name: pytree.tree_flatten(value) for name, value in named.items()}


def changed_arguments(before: Contents, named: Mapping[str, Any]) -> tuple[str, ...]:
    """Name the arguments that hold other objects than before a call, or the same ones elsewhere.

    Args:
        before: What the arguments held before the call.
        named: The arguments after it.
    """
    after = contents_of(named)
    return tuple(
        name
        for name, (leaves, structure) in before.items()
        if structure != after[name][1] or not all(map(is_, leaves, after[name][0]))
    )


def can_be_put_back(value: Any) -> bool:
    """Say whether an argument can be given other contents: a list, a dict, a dataclass, a ``DynamicCache``."""
    if isinstance(value, type):
        return False
    # One that is a dict as well, as outputs of transformers are, holds its values twice.
    fields = dataclasses.is_dataclass(value) and not isinstance(value, dict)
    known = fields or isinstance(value, UserDict) or is_dynamic_cache(type(value))
    return known or type(value) in (list, dict, OrderedDict)


def is_given_twice(names: Sequence[str], named: Mapping[str, Any]) -> bool:
    """Say whether one object is several arguments, of which the forward changes one: all of them would change.

    Args:
        names: The arguments that the forward changes.
        named: The arguments of a call.
    """
    return any(named[name] is value for name in names for other, value in named.items() if other != name)


def with_arguments(output: Any, changed: Mapping[str, Any]) -> dict[str, Any]:
    """Return an output together with arguments, as one value.

    Args:
        output: What the forward returned, of containers that are registered; an argument that is part of it is only
            marked there.
        changed: The arguments after the call, by name.
    """
    marks = {id(value): _MARK + name for name, value in changed.items()}
    marked = pytree.tree_map(lambda node: marks.get(id(node), node), output, is_leaf=lambda node: id(node) in marks)
    return {"output": marked, "arguments": dict(changed)}


def put_back(value: Mapping[str, Any], named: Mapping[str, Any]) -> Any:
    """Give the caller's arguments their new contents, and return the output with them in it.

    Args:
        value: What :func:`with_arguments` returned.
        named: The arguments as the caller gave them.
    """
    marks = {_MARK + name: named[name] for name in value["arguments"]}
    for name, contents in value["arguments"].items():
        _fill(named[name], contents)
    return pytree.tree_map(lambda leaf: marks.get(leaf, leaf) if isinstance(leaf, str) else leaf, value["output"])


def _fill(target: Any, contents: Any) -> None:
    if isinstance(target, list):
        target[:] = contents
    elif isinstance(target, UserDict):
        target.data = contents.data
    elif dataclasses.is_dataclass(target):
        _fill_dataclass(target, contents)
    elif isinstance(target, dict):
        target.clear()
        target.update(contents)
    else:
        target.layers = contents.layers


def _fill_dataclass(target: Any, contents: Any) -> None:
    # Past what the class does on assignment: it may be frozen, and may have slots in place of a __dict__.
    for name in (field.name for field in dataclasses.fields(target)):
        if hasattr(contents, name):
            object.__setattr__(target, name, getattr(contents, name))
        elif hasattr(target, name):
            object.__delattr__(target, name)


class ReturningArguments(torch.nn.Module):
    """Calls a module with arguments of its own, and returns those that it changes beside the output.

    Args:
        module: The module.
        graph_spec: The graph; it names the arguments.
    """

    def __init__(self, module: torch.nn.Module, graph_spec: GraphSpec) -> None:
        super().__init__()
        self.module = module
        # Not .train(), which would reach into the module.
        self.training = module.training
        positional = graph_spec.forward_signature.positional
        self._places = {
            name: positional.index(name) if name in positional else len(positional)
            for name in graph_spec.changed_arguments
        }

    def forward(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """Run the module.

        Args:
            args: Positional arguments of a call of the module.
            kwargs: Its keyword arguments.
        """
        given, changed = list(args), {}
        for name, place in self._places.items():
            by_name = name in kwargs
            changed[name] = pytree.tree_map(_same, kwargs[name] if by_name else given[place])
            if by_name:
                kwargs[name] = changed[name]
            else:
                given[place] = changed[name]
        output = self.module(*given, **kwargs)
        return with_arguments(output, changed)


def _same(leaf: Any) -> Any:
    return leaf


def as_function(module: torch.nn.Module, graph_spec: GraphSpec) -> torch.nn.Module:
    """Return what is tuned in place of a module: itself, or what returns the arguments that it changes.

    Args:
        module: The module.
        graph_spec: The graph.
    """
    return ReturningArguments(module, graph_spec) if graph_spec.changed_arguments else module
