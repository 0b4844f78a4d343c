"""How a user says which axes of the inputs vary, and where an input sits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from aitune.exceptions import AITuneUserInputError
from aitune.utils.validation import positive_integer


@dataclass(frozen=True)
class DynamicDim:
    """An axis whose size varies from call to call.

    Args:
        name: Axes with the same name have the same size in every call.
        min: Smallest size.
        max: Largest size, above ``min``.
        opt: Size to optimise for, between ``min`` and ``max``.

    Raises:
        AITuneUserInputError: The name is empty, or the bounds are not positive integers in order.
    """

    name: str
    min: int
    max: int
    opt: int | None = None

    def __post_init__(self) -> None:
        kind = type(self).__name__
        if not isinstance(self.name, str) or not self.name:
            raise AITuneUserInputError(f"{kind}: name must be a non-empty string, got {self.name!r}")
        for label in ("min", "max") if self.opt is None else ("min", "max", "opt"):
            # An integer of NumPy becomes a plain one; the dataclass is frozen.
            size = positive_integer(getattr(self, label), f"{kind} {self.name!r}: {label}")
            object.__setattr__(self, label, size)
        if self.min >= self.max:
            raise AITuneUserInputError(
                f"{kind} {self.name!r}: min must be below max, got min={self.min}, max={self.max}; "
                f"for an axis of one size give the integer itself"
            )
        if self.opt is not None and not self.min <= self.opt <= self.max:
            raise AITuneUserInputError(
                f"{kind} {self.name!r}: opt must lie between min={self.min} and max={self.max}, got opt={self.opt}"
            )


@dataclass(frozen=True)
class BatchDim(DynamicDim):
    """An axis that holds the samples of a batch; see :class:`DynamicDim` for the arguments."""


InputPath: TypeAlias = "str | tuple[str | int, ...]"
"""Where a tensor sits in the arguments: ``"x"``, ``("options", "mask")``, ``("items", 0)``."""

DynamicShapes: TypeAlias = Mapping[InputPath, tuple["DynamicDim | int", ...]]
"""Axes per input path; an integer says that the axis always has that size."""


def check_dynamic_shapes(shapes: Any) -> dict[InputPath, Any]:
    """Return declared axes as a dict, with what can be seen before a call was recorded.

    Args:
        shapes: What the user gave; ``None`` declares nothing.

    Raises:
        AITuneUserInputError: It is no mapping from paths to axes.
    """
    if shapes is None:
        return {}
    if not isinstance(shapes, Mapping):
        raise AITuneUserInputError(
            f"dynamic_shapes must be a dict such as {{'x': (ait.BatchDim('batch', 1, 8), 128)}}, got {shapes!r}"
        )
    for path, dims in shapes.items():
        if not isinstance(path, str | tuple) or not path:
            raise AITuneUserInputError(
                f"dynamic_shapes: a path must be a parameter name or a tuple such as ('options', 'mask'), got {path!r}"
            )
        listed = isinstance(dims, Sequence) and not isinstance(dims, str)
        if not listed or not all(isinstance(dim, DynamicDim) or _is_size(dim) for dim in dims):
            raise AITuneUserInputError(
                f"dynamic_shapes: {path!r} needs a BatchDim, a DynamicDim or a size for each axis, got {dims!r}"
            )
    return dict(shapes)


def _is_size(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0
