"""Containers that torch's pytree does not know by itself but that calls and outputs use."""

from __future__ import annotations

import dataclasses
from collections import UserDict
from typing import Any

from torch.utils import _pytree as pytree


def register_containers(tree: Any) -> None:
    """Register dataclasses and ``UserDict`` classes met inside ``tree`` with torch's pytree.

    A registration lasts as long as the process and is what their users would have to write themselves. Classes that
    are registered already, by their library or by the user, are left alone.

    Args:
        tree: Nested arguments or outputs.
    """
    pending = [tree]
    while pending:
        for leaf in pytree.tree_leaves(pending.pop()):
            if dataclasses.is_dataclass(leaf) and not isinstance(leaf, type):
                _register_dataclass(type(leaf))
                pending.append(leaf)
            elif isinstance(leaf, UserDict):
                _register_user_dict(type(leaf))
                pending.append(leaf)


def _register_dataclass(cls: type[Any]) -> None:
    names = [field.name for field in dataclasses.fields(cls) if field.init]

    def flatten(value: Any) -> tuple[list[Any], list[str]]:
        return [getattr(value, name) for name in names], names

    def flatten_with_keys(value: Any) -> tuple[list[tuple[Any, Any]], list[str]]:
        return [(pytree.MappingKey(name), getattr(value, name)) for name in names], names

    def unflatten(values: Any, context: Any) -> Any:
        return cls(**dict(zip(context, values, strict=True)))

    pytree.register_pytree_node(
        cls,
        flatten,
        unflatten,
        flatten_with_keys_fn=flatten_with_keys,
        serialized_type_name=f"{cls.__module__}.{cls.__qualname__}",
    )


def _register_user_dict(cls: type[UserDict[Any, Any]]) -> None:
    def flatten(value: UserDict[Any, Any]) -> tuple[list[Any], list[Any]]:
        return list(value.data.values()), list(value.data)

    def flatten_with_keys(value: UserDict[Any, Any]) -> tuple[list[tuple[Any, Any]], list[Any]]:
        return [(pytree.MappingKey(key), item) for key, item in value.data.items()], list(value.data)

    def unflatten(values: Any, context: Any) -> UserDict[Any, Any]:
        # BatchEncoding and its like take further constructor arguments; a new object with the data alone is what a
        # forward reads.
        rebuilt = cls.__new__(cls)
        UserDict.__init__(rebuilt)
        rebuilt.data = dict(zip(context, values, strict=True))
        return rebuilt

    pytree.register_pytree_node(
        cls,
        flatten,
        unflatten,
        flatten_with_keys_fn=flatten_with_keys,
        serialized_type_name=f"{cls.__module__}.{cls.__qualname__}",
    )
