"""The state that a backend gives for itself, as JSON: artifact paths, odd floats and awkward keys included."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from aitune.exceptions import ArtifactError
from aitune.torch.backend.artifact_path import ArtifactPath

_MARK = "$"
_ARTIFACT = "$artifact"
_FLOAT = "$float"


def state_to_plain(value: Any, where: str = "state") -> Any:
    """Write a state as plain JSON data.

    An artifact path becomes ``{"$artifact": relative path}``, a float that JSON lacks ``{"$float": "nan"}``; keys that
    begin with ``$`` get another one in front. Tuples become lists.

    Args:
        value: What ``to_dict`` gave, or a part of it.
        where: Which part, for messages.

    Raises:
        ArtifactError: It holds something else.
    """
    if isinstance(value, ArtifactPath):
        return {_ARTIFACT: value.relative_path.as_posix()}
    if isinstance(value, Mapping):
        for key in value:
            if not isinstance(key, str):
                raise ArtifactError(f"{where} has the key {key!r}, expected strings as keys")
        return {
            (_MARK + key if key.startswith(_MARK) else key): state_to_plain(item, f"{where}[{key!r}]")
            for key, item in value.items()
        }
    if isinstance(value, list | tuple):
        return [state_to_plain(item, f"{where}[{number}]") for number, item in enumerate(value)]
    if isinstance(value, float) and not math.isfinite(value):
        return {_FLOAT: repr(value)}
    if value is None or type(value) in (bool, int, float, str):
        return value
    raise ArtifactError(f"{where} is a {type(value).__qualname__}, expected plain data or an artifact path")


def state_from_plain(value: Any, root: Path) -> Any:
    """Read what :func:`state_to_plain` wrote.

    Args:
        value: Plain data.
        root: Folder that artifact paths are below.

    Raises:
        ArtifactError: The data was not written by it.
    """
    if isinstance(value, list):
        return [state_from_plain(item, root) for item in value]
    if not isinstance(value, dict):
        return value
    if len(value) == 1:
        mark, content = next(iter(value.items()))
        if mark == _ARTIFACT and isinstance(content, str):
            return ArtifactPath(root, Path(content))
        if mark == _FLOAT and content in ("nan", "inf", "-inf"):
            return float(content)
    plain = {}
    for key, item in value.items():
        if key.startswith(_MARK) and not key.startswith(2 * _MARK):
            raise ArtifactError(f"the stored state has the key {key!r}, which has no meaning")
        plain[key[1:] if key.startswith(_MARK) else key] = state_from_plain(item, root)
    return plain


def artifact_paths_in(value: Any) -> list[ArtifactPath]:
    """Return the artifact paths that a state holds, in order.

    Args:
        value: What ``to_dict`` gave, or a part of it.
    """
    if isinstance(value, ArtifactPath):
        return [value]
    parts = value.values() if isinstance(value, Mapping) else value if isinstance(value, list | tuple) else ()
    return [path for part in parts for path in artifact_paths_in(part)]
