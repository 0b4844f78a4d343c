"""Paragraphs in lines of a given width."""

from __future__ import annotations

import textwrap

from aitune.utils.printable import printable


def wrap_text(text: str, width: int, indent: str = "") -> str:
    """Break a text into lines of at most ``width`` characters.

    Args:
        text: One paragraph.
        width: Characters in a line.
        indent: What every line but the first begins with.
    """
    line = printable(" ".join(text.split()))
    return textwrap.fill(line, width, subsequent_indent=indent) if line else ""
