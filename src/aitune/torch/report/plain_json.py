"""Values as JSON text and back without loss: frozen records, and numbers that JSON has no form for."""

from __future__ import annotations

import dataclasses
import enum
import json
import math
import numbers
from collections.abc import Mapping, Set
from typing import Any

from aitune.exceptions import AITuneUserInputError
from aitune.torch.backend.artifact_path import ArtifactPath

_FLOAT = "$float"


def to_text(value: Any) -> str:
    """Write a value as indented JSON.

    Dataclasses become objects, artifact paths and other unknown values plain strings, tuples and sets lists. NaN and
    the infinities, which JSON lacks, become ``{"$float": "nan"}``.

    Args:
        value: Anything made of dataclasses, mappings, sequences and plain values.

    Raises:
        AITuneUserInputError: It holds itself, or nests too deeply.
    """
    try:
        return json.dumps(_to_plain(value), indent=2, allow_nan=False)
    except RecursionError as error:
        raise AITuneUserInputError(
            "the report cannot be written: the state of a backend or the settings of a strategy hold themselves, or "
            "nest too deeply; let to_dict and to_json_dict return plain data"
        ) from error


def from_text(text: str | bytes) -> Any:
    """Read plain values from what :func:`to_text` wrote.

    Args:
        text: JSON.

    Raises:
        ValueError: The text is not JSON.
    """
    return _from_plain(json.loads(text))


def _to_plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {_escaped(_key(key)): _to_plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_to_plain(item) for item in value]
    if isinstance(value, Set):
        return [_to_plain(item) for item in sorted(value, key=repr)]
    if isinstance(value, ArtifactPath):
        return str(value.path)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: _to_plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    return _scalar_to_plain(value)


def _scalar_to_plain(value: Any) -> Any:
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, enum.Enum):
        return _to_plain(value.value)
    if isinstance(value, str):
        return str(value)
    if isinstance(value, numbers.Integral):
        return int(value)
    if isinstance(value, numbers.Real):
        number = float(value)
        return number if math.isfinite(number) else {_FLOAT: repr(number)}
    return str(value)


def _key(key: Any) -> str:
    return key if isinstance(key, str) else str(key)


def _escaped(key: str) -> str:
    # A key of the user's own that looks like ours must come back as it was.
    return f"${key}" if key.startswith("$") else key


def _from_plain(value: Any) -> Any:
    if isinstance(value, list):
        return [_from_plain(item) for item in value]
    if isinstance(value, dict):
        if set(value) == {_FLOAT}:
            return float(str(value[_FLOAT]))
        return {key[1:] if key.startswith("$") else key: _from_plain(item) for key, item in value.items()}
    return value
