"""How far an output may be from its reference, by the precision that it was computed in."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Tolerance:
    """Limits for outputs of one precision.

    Two right ways to compute one thing differ by rounding, so the module's own rounding noise (its error against a
    float64 run of itself) sets the scale; the floor stands in where the noise is smaller or unknown.

    Args:
        floor: Relative L2 error that always passes.
        noise_factor: Multiple of the noise that passes.
        max_noise: Largest error of the module against its float64 run that rounding explains; above it the float64 run
            computed something else, and is no reference.
        peak_factor: The largest error over the largest reference value may be this multiple of the allowed relative L2.
    """

    floor: float
    noise_factor: float
    max_noise: float
    peak_factor: float

    def allowed(self, noise: float | None) -> float:
        """Return the largest relative L2 error that passes.

        Args:
            noise: Relative L2 error of the module itself against its float64 run, where there is one.
        """
        return self.floor if noise is None else max(self.noise_factor * noise, self.floor)


# Measured on honest candidates (ONNX Runtime, OpenVINO in float32, Inductor; CNN, MLP, LSTM, transformer): relative L2
# up to 0.2 of what is allowed, and the largest error over the largest value up to 2.6 times the relative L2 (1.8 times
# for half precisions). Where all values are of one size and errors are normal, that ratio reaches 6 in a million
# elements, so 10 leaves room; half precisions are allowed less of their noise to begin with, and get 5.
_FLOAT64 = Tolerance(floor=1e-11, noise_factor=10.0, max_noise=1e-9, peak_factor=10.0)
_FLOAT32 = Tolerance(floor=1e-5, noise_factor=10.0, max_noise=1e-4, peak_factor=10.0)
_FLOAT16 = Tolerance(floor=1e-3, noise_factor=3.0, max_noise=1e-2, peak_factor=5.0)
_BFLOAT16 = Tolerance(floor=5e-3, noise_factor=3.0, max_noise=5e-2, peak_factor=5.0)
_FLOAT8 = Tolerance(floor=5e-2, noise_factor=3.0, max_noise=2e-1, peak_factor=5.0)

# From the finest to the coarsest.
_BY_DTYPE: dict[torch.dtype, Tolerance] = {
    torch.float64: _FLOAT64,
    torch.complex128: _FLOAT64,
    torch.float32: _FLOAT32,
    torch.complex64: _FLOAT32,
    torch.float16: _FLOAT16,
    torch.complex32: _FLOAT16,
    torch.bfloat16: _BFLOAT16,
}


def tolerance_for(dtype: torch.dtype) -> Tolerance | None:
    """Return the limits for a dtype; ``None`` for integers and bools, which have to agree exactly."""
    if not (dtype.is_floating_point or dtype.is_complex):
        return None
    return _BY_DTYPE.get(dtype, _FLOAT8)


def coarser(first: Tolerance, second: Tolerance) -> Tolerance:
    """Return the one of two limits that allows more."""
    return first if first.floor >= second.floor else second
