"""An exception in a line or a few; torch's messages run over pages."""

from __future__ import annotations

from aitune.exceptions import AITuneError


def error_line(error: BaseException) -> str:
    """Return the kind of an exception and the first line of what it says.

    Args:
        error: The exception.
    """
    return error_lines(error, 1)


def error_lines(error: BaseException, most: int) -> str:
    """Return the kind of an exception and the first lines of what it says, blank ones left out.

    Args:
        error: The exception.
        most: How many lines.
    """
    lines = [line for line in str(error).strip().splitlines() if line.strip()]
    kind = type(error).__name__
    return f"{kind}: " + "\n".join(lines[:most]) if lines else kind


def error_reason(error: BaseException) -> str:
    """Return what an exception says as the reason of something; the messages of aitune's own stand alone.

    Args:
        error: The exception.
    """
    return str(error) if isinstance(error, AITuneError) else f"{type(error).__name__}: {error}"
