"""Checks of plain arguments, with messages that name the argument, what was given and what is expected."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from typing import Any

from aitune.exceptions import AITuneUserInputError


def integer_at_least(value: Any, what: str, smallest: int) -> int:
    """Return a value as an integer; integers of NumPy are taken, bools are not.

    Args:
        value: What was given.
        what: Name of the argument.
        smallest: Smallest integer that is allowed.

    Raises:
        AITuneUserInputError: It is no integer, or a smaller one.
    """
    try:
        number = None if isinstance(value, bool) else operator.index(value)
    except TypeError:
        number = None
    if number is None or number < smallest:
        raise AITuneUserInputError(f"{what} must be an integer of at least {smallest}, got {value!r}")
    return number


def positive_integer(value: Any, what: str) -> int:
    """Return a value as an integer of at least 1; see :func:`integer_at_least`."""
    return integer_at_least(value, what, 1)


def positive_number(value: Any, what: str, kind: str = "number") -> float:
    """Return a value as a number above 0; infinity is taken, NaN and bools are not.

    Args:
        value: What was given.
        what: Name of the argument.
        kind: What is counted, such as ``"number of milliseconds"``.

    Raises:
        AITuneUserInputError: It is no number above 0.
    """
    number = _as_float(value)
    if not number > 0:
        raise AITuneUserInputError(f"{what} must be a positive {kind}, got {value!r}")
    return number


def number_at_least(value: Any, what: str, smallest: float) -> float:
    """Return a value as a finite number that is not below another one; bools are not taken.

    Args:
        value: What was given.
        what: Name of the argument.
        smallest: Smallest number that is allowed.

    Raises:
        AITuneUserInputError: It is no such number.
    """
    number = _as_float(value)
    if not smallest <= number < math.inf:
        raise AITuneUserInputError(f"{what} must be a finite number of at least {smallest:g}, got {value!r}")
    return number


def _as_float(value: Any) -> float:
    """Return a number as a ``float``; NaN, which no bound holds, for what is none or too large for one."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return math.nan
    try:
        return float(value)
    except OverflowError:
        return math.nan


def positive_seconds(value: Any, what: str) -> float:
    """Return a value as a number of seconds above 0; see :func:`positive_number`."""
    return positive_number(value, what, "number of seconds")


def boolean(value: Any, what: str) -> bool:
    """Return a value that is ``True`` or ``False``; a text such as ``"no"`` would count as true.

    Args:
        value: What was given.
        what: Name of the argument.

    Raises:
        AITuneUserInputError: It is neither.
    """
    if not isinstance(value, bool):
        raise AITuneUserInputError(f"{what} must be True or False, got {value!r}")
    return value


def one_of(value: Any, what: str, allowed: Sequence[Any]) -> Any:
    """Return a value that is one of a few; ``True`` is not 1.

    Args:
        value: What was given.
        what: Name of the argument.
        allowed: The values that it may have.

    Raises:
        AITuneUserInputError: It is none of them.
    """
    # Types first: what was given may be an array, whose comparison has no truth.
    if not any(type(value) is type(choice) and value == choice for choice in allowed):
        raise AITuneUserInputError(f"{what} must be one of {', '.join(map(repr, allowed))}, got {value!r}")
    return value
