"""Which values an input may take, read from recorded calls, and how to make other valid ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch

from aitune.torch.module.tensor_spec import TensorSpec

# More distinct values than this are drawn from a part of them.
_MAX_CHOICES = 4096

# Share of the elements that get another value when shifting alone changed nothing.
_REDRAWN_SHARE = 0.25

# Size of the noise that is added to continuous values, in standard deviations of the data.
_NOISE_SHARE = 0.1

ValueKind = Literal["continuous", "choice", "binary"]
"""continuous: any float in the range. choice: only values that occur. binary: one of at most two values."""


@dataclass(frozen=True)
class ValueRule:
    """What the values of one input tensor look like.

    Args:
        kind: How new values may be made.
        choices: Values that occur, for ``"choice"`` and ``"binary"``.
        low: Smallest finite value, for ``"continuous"``.
        high: Largest finite value, for ``"continuous"``.
        deviation: Standard deviation, for ``"continuous"``.
        is_increasing: Whether the values never decrease along the last axis, as positions do; they are left alone.
        always_has: For ``"binary"``: the larger value, when every line along the last axis holds it at least once.
    """

    kind: ValueKind
    choices: torch.Tensor
    low: float = 0.0
    high: float = 0.0
    deviation: float = 0.0
    is_increasing: bool = False
    always_has: bool = False

    @classmethod
    def from_tensors(cls, tensors: Sequence[torch.Tensor], spec: TensorSpec) -> ValueRule:
        """Read the rule from what was recorded for one input tensor.

        Args:
            tensors: The input in every recorded call, any shapes of one rank.
            spec: The tensor's spec; a 0-1 integer input whose name says "mask" may hold zeros even if none was seen.
        """
        filled = [tensor.detach() for tensor in tensors if tensor.numel()]
        dtype = tensors[0].dtype
        if not filled:
            return cls("choice", torch.zeros(1, dtype=dtype))
        flat = torch.cat([tensor.reshape(-1) for tensor in filled]).cpu()
        is_number = dtype.is_floating_point or dtype.is_complex
        distinct = _two_values(flat) if is_number else torch.unique(flat)
        if distinct is None:
            parts = _real_parts(flat).to(torch.float64)
            parts = parts[parts.isfinite()]
            deviation = parts.std(correction=0).item() if len(parts) else 0.0
            low, high = (parts.min().item(), parts.max().item()) if len(parts) else (0.0, 0.0)
            return cls("continuous", flat[:0], low, high, deviation)
        if dtype is torch.bool:
            distinct = torch.tensor([False, True])
        elif not is_number and distinct.tolist() == [1] and _is_called_mask(spec):
            distinct = torch.tensor([0, 1], dtype=dtype)
        is_binary = len(distinct) == 2 and (is_number or distinct.tolist() == [0, 1] or dtype is torch.bool)
        lines = [tensor for tensor in filled if tensor.dim()]
        return cls(
            "binary" if is_binary else "choice",
            distinct[torch.linspace(0, len(distinct) - 1, min(len(distinct), _MAX_CHOICES)).long()],
            is_increasing=not is_binary and _all_increasing(lines),
            always_has=is_binary and all(bool((line == distinct[1]).any(dim=-1).all()) for line in lines),
        )

    def tidy(self, tensor: torch.Tensor) -> torch.Tensor:
        """Restore what holds in all recorded values after a tensor was cut, repeated or changed.

        Args:
            tensor: Values of this input.
        """
        if self.is_increasing and tensor.dim():
            return tensor.sort(dim=-1).values
        if self.always_has and tensor.dim() and tensor.numel():
            lacking = ~(tensor == self.choices[1].to(tensor.device)).any(dim=-1)
            if lacking.any():
                tensor = tensor.clone()
                tensor[..., 0][lacking] = self.choices[1].item()
        return tensor

    def vary(self, tensor: torch.Tensor, shift: int, axis: int | None, generator: torch.Generator) -> torch.Tensor:
        """Return other valid values of the same shape.

        Args:
            tensor: Values of this input.
            shift: How far values that are no continuous numbers move along ``axis``, in turn.
            axis: Axis to shift along; ``None`` draws values anew instead.
            generator: Source of randomness.
        """
        if self.is_increasing or tensor.numel() == 0:
            return tensor
        if self.kind == "continuous":
            return self._add_noise(tensor, generator)
        shifted = tensor.roll(shift, axis) if axis is not None else tensor
        if torch.equal(shifted, tensor):
            shifted = self._redraw(tensor, generator)
        return self.tidy(shifted)

    def _add_noise(self, tensor: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
        parts = _real_parts(tensor)
        values = parts.to(torch.float64)
        noise = torch.randn(parts.shape, generator=generator, dtype=torch.float64).to(parts.device)
        noisy = values + _NOISE_SHARE * self.deviation * noise
        # Reflected into the range that was seen, so that pixels stay pixels and probabilities stay probabilities.
        noisy = torch.where(noisy < self.low, 2 * self.low - noisy, noisy)
        noisy = torch.where(noisy > self.high, 2 * self.high - noisy, noisy).clamp(self.low, self.high)
        noisy = noisy.where(values.isfinite(), values).to(parts.dtype)
        return torch.view_as_complex(noisy.contiguous()) if tensor.is_complex() else noisy

    def _redraw(self, tensor: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
        if len(self.choices) < 2:
            return tensor
        if self.kind == "binary":
            one, other = self.choices.to(tensor.device)
            drawn = torch.where(tensor == one, other, one)
        else:
            drawn = self.choices[torch.randint(len(self.choices), tensor.shape, generator=generator)]
        chosen = torch.rand(tensor.shape, generator=generator) < _REDRAWN_SHARE
        if not chosen.any():
            chosen.reshape(-1)[int(torch.randint(tensor.numel(), (1,), generator=generator))] = True
        return tensor.where(~chosen.to(tensor.device), drawn.to(tensor.device))


def _two_values(flat: torch.Tensor) -> torch.Tensor | None:
    """Return the values that occur, smallest first, if there are at most two of them; without sorting all."""
    if flat.is_complex():
        return None
    first = flat[0]
    others = flat[flat != first]
    if len(others) == 0:
        return flat[:1]
    second = others[0]
    if (others != second).any():
        return None
    return torch.stack([first, second] if bool(first < second) else [second, first])


def _real_parts(tensor: torch.Tensor) -> torch.Tensor:
    return torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor


def _is_called_mask(spec: TensorSpec) -> bool:
    return any("mask" in str(key).lower() for key in spec.locator)


def _all_increasing(lines: Sequence[torch.Tensor]) -> bool:
    """Whether no line along the last axis decreases, and at least one of them increases."""
    steps = [line.diff(dim=-1) for line in lines if line.shape[-1] > 1 and line.dtype is not torch.bool]
    return bool(steps) and all(bool((step >= 0).all()) for step in steps) and any(bool(s.any()) for s in steps)
