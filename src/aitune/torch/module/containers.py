"""Containers that torch's pytree does not know by itself, or cannot write down, but that calls and outputs use."""

from __future__ import annotations

import dataclasses
from collections import UserDict
from collections.abc import Callable
from typing import Any

from torch.utils import _pytree as pytree

from aitune.torch.config import config

# Set on the functions that take a class apart, to know them again.
_KIND = "aitune_container_kind"


def register_containers(tree: Any) -> None:
    """Register dataclasses, named tuples, ``UserDict`` classes and caches met inside ``tree`` with torch's pytree.

    A registration lasts as long as the process and is what their users would have to write themselves. Classes that
    are registered already, by their library or by the user, are left alone.

    Args:
        tree: Nested arguments or outputs.
    """
    pending = [tree]
    while pending:
        for leaf in pytree.tree_leaves(pending.pop(), is_leaf=_complete_registration):
            if dataclasses.is_dataclass(leaf) and not isinstance(leaf, type):
                _register_once(type(leaf), _register_dataclass)
                pending.append(leaf)
            elif isinstance(leaf, UserDict):
                _register_once(type(leaf), _register_user_dict)
                pending.append(leaf)
            elif is_dynamic_cache(type(leaf)):
                _register_once(type(leaf), _register_dynamic_cache)
                pending += [leaf] if type(leaf) in pytree.SUPPORTED_NODES else []


def is_dynamic_cache(cls: type[Any]) -> bool:
    """Say whether a class is the growing key-value cache of transformers."""
    known = config.enable_transformers_integration and cls.__module__ == "transformers.cache_utils"
    return known and cls.__name__ == "DynamicCache"


def _register_dynamic_cache(cls: type[Any]) -> None:
    # The library has a form of its own, which its exporters need to be the registered one.
    try:
        from transformers.integrations.executorch import register_dynamic_cache_export_support
    except ImportError:
        return
    register_dynamic_cache_export_support()


def _register_once(cls: type[Any], register: Callable[[type[Any]], None]) -> None:
    try:
        if cls not in pytree.SUPPORTED_NODES:
            register(cls)
    except ValueError:
        # Another thread was faster; anything else is an error.
        if cls not in pytree.SUPPORTED_NODES:
            raise


def container_kind(cls: type[Any]) -> str | None:
    """Say whether a class was registered here: as ``"dataclass"``, as ``"user dict"``, or not (``None``).

    Args:
        cls: The class.
    """
    entry = pytree.SUPPORTED_NODES.get(cls)
    return getattr(entry.flatten_fn, _KIND, None) if entry is not None else None


def _complete_registration(node: Any) -> bool:
    """Add what torch's pytree lacks about a class that it takes apart already; never stops the walk."""
    cls = type(node)
    # Named tuples are known by themselves, but the structure is written down only for those that have a name with it.
    if isinstance(node, tuple) and hasattr(cls, "_fields") and cls not in pytree.SUPPORTED_SERIALIZED_TYPES:
        pytree._register_namedtuple(cls, serialized_type_name=f"{cls.__module__}.{cls.__qualname__}")
    entry = pytree.SUPPORTED_NODES.get(cls)
    # A user may register a class without naming its entries; torch then refuses to say where a leaf sits.
    if entry is not None and entry.flatten_with_keys_fn is None:
        pytree.SUPPORTED_NODES[cls] = entry._replace(flatten_with_keys_fn=_numbered_entries(entry.flatten_fn))
    return False


def _numbered_entries(flatten: Callable[[Any], tuple[list[Any], Any]]) -> Callable[[Any], Any]:
    def flatten_with_keys(value: Any) -> tuple[list[tuple[Any, Any]], Any]:
        children, context = flatten(value)
        return [(pytree.SequenceKey(index), child) for index, child in enumerate(children)], context

    return flatten_with_keys


def _register_dataclass(cls: type[Any]) -> None:
    declared = [field.name for field in dataclasses.fields(cls)]

    def names_of(value: Any) -> list[str]:
        # A field without a default that __init__ does not set may be missing.
        return [name for name in declared if hasattr(value, name)]

    def flatten(value: Any) -> tuple[list[Any], list[str]]:
        names = names_of(value)
        return [getattr(value, name) for name in names], names

    def flatten_with_keys(value: Any) -> tuple[list[tuple[Any, Any]], list[str]]:
        names = names_of(value)
        return [(pytree.MappingKey(name), getattr(value, name)) for name in names], names

    def unflatten(values: Any, context: Any) -> Any:
        # The values are final: __init__ and __post_init__ would compute some of them anew, or ask for arguments that
        # are no fields.
        rebuilt = object.__new__(cls)
        for name, value in zip(context, values, strict=True):
            object.__setattr__(rebuilt, name, value)
        return rebuilt

    setattr(flatten, _KIND, "dataclass")
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
        data = dict(zip(context, values, strict=True))
        try:
            # Methods may need attributes that only the constructor sets, as those of BatchEncoding do.
            rebuilt = cls(data)
        except TypeError:
            rebuilt = cls.__new__(cls)
            UserDict.__init__(rebuilt)
        rebuilt.data = data
        return rebuilt

    setattr(flatten, _KIND, "user dict")
    pytree.register_pytree_node(
        cls,
        flatten,
        unflatten,
        flatten_with_keys_fn=flatten_with_keys,
        serialized_type_name=f"{cls.__module__}.{cls.__qualname__}",
    )
