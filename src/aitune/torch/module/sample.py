"""One recorded call."""

from __future__ import annotations

from typing import Any, NamedTuple


class Sample(NamedTuple):
    """Arguments of one call of the module, in the canonical form of its forward signature.

    Args:
        args: Positional arguments.
        kwargs: Keyword arguments.
    """

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
