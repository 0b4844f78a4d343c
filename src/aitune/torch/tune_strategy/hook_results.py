"""What the hooks of a strategy return, checked where it comes in: an author's slip is named, and not served.

A hook is named as ``Mine._measure``, so that the message leads to the line to mend.
"""

from __future__ import annotations

import math
import numbers
from collections.abc import Callable, Sequence
from typing import Any, TypeVar, cast

from aitune.exceptions import AITuneUserInputError

Kind = TypeVar("Kind")


def hook_name(owner: object, hook: str) -> str:
    """Return a hook of a strategy as it is called in messages, such as ``Mine._measure``.

    Args:
        owner: The strategy.
        hook: Name of the method.
    """
    return f"{type(owner).__name__}.{hook}"


def expect_kind(value: Any, kind: Callable[..., Kind], hook: str, expected: str) -> Kind:
    """Return what a hook returned when it is of a kind.

    Args:
        value: What it returned.
        kind: The class that is expected; it may be abstract.
        hook: The hook, as :func:`hook_name` calls it.
        expected: What it should be, in words.

    Raises:
        AITuneUserInputError: It is something else.
    """
    # "Callable", because the type checker takes no abstract class for a "type".
    if isinstance(value, cast("type[Kind]", kind)):
        return value
    hint = f"an instance, not the class {value.__name__}: " if isinstance(value, type) else ""
    raise AITuneUserInputError(f"{hook} returned {value!r}; expected {hint}{expected}")


def expect_texts(value: Any, hook: str) -> list[str]:
    """Return a list of texts that a hook returned; see :func:`expect_kind`."""
    if isinstance(value, str) or not isinstance(value, Sequence) or not all(isinstance(part, str) for part in value):
        raise AITuneUserInputError(f"{hook} returned {value!r}; expected a list of str")
    return list(value)


def expect_flag(value: Any, hook: str) -> bool:
    """Return a truth value that a hook returned: a bool, or a NumPy bool or tensor of one.

    Args:
        value: What it returned.
        hook: The hook, as :func:`hook_name` calls it.

    Raises:
        AITuneUserInputError: It is something else; a number or ``None`` does not count as false.
    """
    flag = _unwrapped(value)
    if not isinstance(flag, bool):
        raise AITuneUserInputError(f"{hook} returned {value!r}; expected True or False")
    return flag


def as_number(value: Any) -> float | None:
    """Return a real number as a float: of Python, a NumPy scalar, or an array or tensor without dimensions.

    Args:
        value: Anything.

    Returns:
        The number, which may be NaN or infinite; ``None`` for everything else, truth values included.
    """
    number = _unwrapped(value)
    if isinstance(number, bool) or not isinstance(number, numbers.Real):
        return None
    try:
        return float(number)
    except OverflowError:
        return math.inf


def why_not_positive(value: Any) -> str | None:
    """Say why a figure cannot be compared; ``None`` when it is a finite real number above 0.

    Args:
        value: What a hook or a result gave.
    """
    number = as_number(value)
    if number is not None and math.isfinite(number) and number > 0:
        return None
    return f"is {value!r}; expected a finite number above 0"


def _unwrapped(value: Any) -> Any:
    """Take a scalar out of the array or tensor around it."""
    return value.item() if getattr(value, "ndim", None) == 0 and hasattr(value, "item") else value
