"""An exception in one line."""

from __future__ import annotations


def error_line(error: BaseException) -> str:
    """Return the kind of an exception and the first line of what it says; torch's messages run over pages.

    Args:
        error: The exception.
    """
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
