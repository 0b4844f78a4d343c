"""Texts that may be anybody's, fit for a terminal."""

from __future__ import annotations


def printable(text: str) -> str:
    """Escape what would steer a terminal or begin a line.

    Args:
        text: One line.
    """
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)
