"""Any text as the name of a folder."""

from __future__ import annotations

import hashlib
import re

LONGEST_PREFIX = 60
"""Characters of the text that stay readable; file systems take 255 bytes."""


def folder_name(text: str) -> str:
    """Return a name that any file system takes: what is readable of a text, then a hash of all of it.

    Texts that differ, be it by case alone or by a character that no folder may have, get names that differ on file
    systems that ignore case, too.

    Args:
        text: Any text.
    """
    readable = re.sub(r"[^A-Za-z0-9_-]+", "_", text)[:LONGEST_PREFIX].strip("_-")
    digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:12]
    return f"{readable}-{digest}" if readable else digest
