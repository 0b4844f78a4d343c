"""What is known about one tensor of a call: dtype, device and its axes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch

from aitune.torch.module.locator import Locator, format_locator


@dataclass(frozen=True)
class Symbol:
    """A size that varies from call to call, shared by every axis that carries its name.

    Args:
        name: Name such as ``"batch0"`` or ``"dim1"``.
        min: Smallest value.
        max: Largest value.
        opt: Value to optimise for, if the user gave one.
        is_batch: Whether it counts the samples of a batch.
    """

    name: str
    min: int
    max: int
    opt: int | None = None
    is_batch: bool = False


@dataclass(frozen=True)
class Axis:
    """One axis of a tensor: a fixed size, or a multiple of a symbol.

    Args:
        size: The fixed size; with a symbol, the factor that its value is multiplied by.
        symbol: The symbol, if the size varies.
    """

    size: int
    symbol: Symbol | None = None

    @property
    def min(self) -> int:
        """Smallest size."""
        return self.size if self.symbol is None else self.size * self.symbol.min

    @property
    def max(self) -> int:
        """Largest size."""
        return self.size if self.symbol is None else self.size * self.symbol.max

    def at(self, sizes: Mapping[str, int]) -> int:
        """Return the size of the axis when the symbols have the given values."""
        return self.size if self.symbol is None else self.size * sizes[self.symbol.name]

    def __str__(self) -> str:
        if self.symbol is None:
            return str(self.size)
        return self.symbol.name if self.size == 1 else f"{self.size}*{self.symbol.name}"


@dataclass(frozen=True)
class TensorSpec:
    """One tensor of a call.

    Args:
        locator: Where the tensor sits in the arguments or in the output.
        axes: Its axes, outermost first.
        dtype: Element type.
        device: Device type, such as ``"cpu"``.
    """

    locator: Locator
    axes: tuple[Axis, ...]
    dtype: torch.dtype
    device: str = "cpu"

    @classmethod
    def of(cls, tensor: torch.Tensor, locator: Locator = ()) -> TensorSpec:
        """Describe a tensor with every axis fixed."""
        return cls(locator, tuple(Axis(size) for size in tensor.shape), tensor.dtype, tensor.device.type)

    @property
    def shape(self) -> tuple[int | str, ...]:
        """Sizes of fixed axes and names of the others, such as ``("batch0", "dim1", 384)``."""
        return tuple(axis.size if axis.symbol is None else str(axis) for axis in self.axes)

    @property
    def min_shape(self) -> tuple[int, ...]:
        """Smallest size of every axis."""
        return tuple(axis.min for axis in self.axes)

    @property
    def max_shape(self) -> tuple[int, ...]:
        """Largest size of every axis."""
        return tuple(axis.max for axis in self.axes)

    @property
    def rank(self) -> int:
        """Number of axes."""
        return len(self.axes)

    def with_axes(self, axes: tuple[Axis, ...]) -> TensorSpec:
        """Return the same tensor with other axes."""
        return replace(self, axes=axes)

    def __str__(self) -> str:
        sizes = ", ".join(str(axis) for axis in self.axes)
        return f"{format_locator(self.locator)}: {str(self.dtype).removeprefix('torch.')}[{sizes}]"
