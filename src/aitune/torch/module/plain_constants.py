"""Constants of a graph as plain data, and back, without running code that plain data names."""

from __future__ import annotations

import base64
import enum
import sys
from typing import Any

import torch

from aitune.exceptions import ArtifactError
from aitune.torch.module.sample_metadata import Constant

_TORCH_KINDS = (torch.dtype, torch.layout, torch.memory_format)


def constant_to_dict(constant: Constant) -> dict[str, Any]:
    """Write a constant as plain data.

    Args:
        constant: The constant.

    Raises:
        ArtifactError: It has no stored form.
    """
    return {"locator": list(constant.locator), **_written(constant)}


def _written(constant: Constant) -> dict[str, Any]:
    value = constant.value
    if value is None or type(value) in (bool, int, str):
        return {"plain": value}
    if type(value) in (float, complex):
        return {type(value).__name__: repr(value)}
    if type(value) is bytes:
        return {"bytes": base64.b64encode(value).decode("ascii")}
    if value is Ellipsis:
        return {"ellipsis": True}
    if type(value) is slice and all(part is None or type(part) is int for part in _parts(value)):
        return {"slice": list(_parts(value))}
    # Several flags at once are no member of their enum.
    if isinstance(value, enum.Enum) and type(value).__members__.get(value.name) is value:
        cls = type(value)
        if _enum(cls.__module__, cls.__qualname__) is cls:
            return {"enum": [cls.__module__, cls.__qualname__, value.name]}
        raise ArtifactError(
            f"{constant} is a member of {cls.__module__}.{cls.__qualname__}, which cannot be found by that name; move "
            f"the class to the top level of a module"
        )
    for kind in _TORCH_KINDS:
        if isinstance(value, kind):
            return {kind.__name__: str(value).removeprefix("torch.")}
    if isinstance(value, torch.device):
        return {"device": str(value)}
    raise ArtifactError(f"{constant} is a {type(value).__qualname__}, which has no stored form")


def constant_from_dict(data: dict[str, Any]) -> Constant:
    """Read a constant from what :func:`constant_to_dict` wrote.

    Args:
        data: Plain data.

    Raises:
        ValueError: It names something that is not here.
    """
    return Constant(tuple(data["locator"]), _read(data))


def _read(data: dict[str, Any]) -> Any:
    if "float" in data:
        return float(data["float"])
    if "complex" in data:
        return complex(data["complex"])
    if "bytes" in data:
        return base64.b64decode(data["bytes"], validate=True)
    if "ellipsis" in data:
        return Ellipsis
    if "slice" in data:
        return slice(*data["slice"])
    if "enum" in data:
        return _member(*data["enum"])
    if "device" in data:
        return _device(data["device"])
    for kind in _TORCH_KINDS:
        if kind.__name__ in data:
            return torch_constant(data[kind.__name__], kind)
    return data["plain"]


def torch_constant(name: str, kind: type[Any]) -> Any:
    """Return a constant of torch by its name.

    Args:
        name: Name in the module ``torch``.
        kind: Type that it must have.

    Raises:
        ValueError: There is none of that name and type.
    """
    value = getattr(torch, name, None)
    if not isinstance(value, kind):
        raise ValueError(f"torch has no {kind.__name__} named {name!r}")
    return value


def _device(name: str) -> torch.device:
    try:
        return torch.device(name)
    except RuntimeError as error:
        raise ValueError(f"torch has no device named {name!r}") from error


def _parts(value: slice) -> tuple[Any, Any, Any]:
    return value.start, value.stop, value.step


def _member(module: str, qualname: str, name: str) -> enum.Enum:
    cls = _enum(module, qualname)
    member: enum.Enum | None = None if cls is None else cls.__members__.get(name)
    if member is None:
        raise ValueError(
            f"there is no member {name!r} of an enum {module}.{qualname} here; import {module} before loading (nothing "
            f"is imported on behalf of a file)"
        )
    return member


def _enum(module: str, qualname: str) -> type[enum.Enum] | None:
    found = find_imported(module, qualname)
    return found if isinstance(found, type) and issubclass(found, enum.Enum) else None


def find_imported(module: str, qualname: str) -> Any:
    """Return an object by its name in a module that is imported already, ``None`` when there is none.

    Nothing is imported and no code of the module runs.

    Args:
        module: Name of the module.
        qualname: Name of the object in it, such as ``"Outer.Inner"``.
    """
    found: Any = sys.modules.get(module)
    for part in qualname.split("."):
        # Not getattr: a module or class may define what that does.
        found = getattr(found, "__dict__", {}).get(part) if found is not None else None
    return found
