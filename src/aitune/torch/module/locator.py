"""Where a leaf sits inside nested arguments or outputs."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeAlias

from torch.utils import _pytree as pytree

Locator: TypeAlias = tuple["str | int", ...]
"""Keys from the outside in: ``("options", "mask")``, ``("items", 0)``; empty for a bare output tensor."""


def locator_from_key_path(key_path: Iterable[Any]) -> Locator:
    """Turn a key path of torch's pytree into a locator.

    Args:
        key_path: Keys as given by ``tree_flatten_with_path``.
    """
    return tuple(_plain_key(key) for key in key_path)


def _plain_key(key: Any) -> str | int:
    if isinstance(key, pytree.SequenceKey):
        return int(key.idx)
    plain = key.key if isinstance(key, pytree.MappingKey) else getattr(key, "name", key)
    return plain if isinstance(plain, str | int) and not isinstance(plain, bool) else repr(plain)


def format_locator(locator: Locator, root: str = "output") -> str:
    """Write a locator as Python would: ``options['mask']``, ``items[0]``.

    Args:
        locator: Keys from the outside in.
        root: What an empty locator stands for, and what a leading integer indexes.
    """
    if not locator:
        return root
    first, *rest = locator
    text = first if isinstance(first, str) else f"{root}[{first}]"
    return text + "".join(f"[{key!r}]" for key in rest)
