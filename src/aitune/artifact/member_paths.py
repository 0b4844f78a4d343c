"""Paths of files inside an artifact: what they may be, so that none leaves the folder it is written to."""

from __future__ import annotations

import re
from collections.abc import Iterable

_LONGEST_PATH = 1000
_LONGEST_PART = 200
_PART = re.compile(r"[A-Za-z0-9_+=@~-][A-Za-z0-9_.+=@~-]*|\.[A-Za-z0-9_][A-Za-z0-9_.+=@~-]*")
# Windows opens a device whatever the extension is, and drops dots at the end of a name.
_DEVICES = re.compile(r"(?i)(con|prn|aux|nul|com[0-9]|lpt[0-9])(\..*)?")


def why_unsafe(path: str) -> str | None:
    """Say why a relative path may not be written to on every system; ``None`` when it may.

    Args:
        path: The path, with ``/`` between its parts.
    """
    if not 0 < len(path) <= _LONGEST_PATH:
        return f"has {len(path)} characters, expected 1 to {_LONGEST_PATH}"
    for part in path.split("/"):
        if not _PART.fullmatch(part) or part.endswith(".") or len(part) > _LONGEST_PART or _DEVICES.fullmatch(part):
            return (
                f"has the part {part!r}, expected 1 to {_LONGEST_PART} of the characters A-Z a-z 0-9 _ . + = @ ~ -, "
                f"not '.' or '..', no dot at the end, and no name of a device"
            )
    return None


def why_clashing(paths: Iterable[str]) -> str | None:
    """Say which of several paths cannot be written side by side; ``None`` when all can.

    Upper and lower case count as the same, because some file systems hold them so.

    Args:
        paths: Relative paths.
    """
    seen: set[str] = set()
    folders: set[str] = set()
    for path in paths:
        folded = path.lower()
        parents = {folded[:end] for end, letter in enumerate(folded) if letter == "/"}
        if folded in seen or folded in folders or parents & seen:
            return f"{path!r} is there twice, or is a file and a folder"
        seen.add(folded)
        folders |= parents
    return None
