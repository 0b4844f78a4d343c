"""What a float64 run shows: the right values, and how much the module itself rounds."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch

from aitune.torch.module.sample import Sample
from aitune.torch.task.comparison import Expectation, as_real_float64, measure
from aitune.torch.task.float64_run import Float64Copy, Float64Unavailable
from aitune.torch.task.rounded_integers import RoundedIntegers
from aitune.torch.task.structure import tensors_with_locators
from aitune.torch.task.tolerance import Tolerance, coarser, tolerance_for

# Above its usual limit the noise of a module is believed up to this multiple of it, and only where a run that rounds
# every result has an error of the same size: some computations (a sine of large values) are that sensitive.
_MOST_EXPLAINED = 10.0


@dataclass(frozen=True)
class EagerCall:
    """One call of the original module and the tensors that it returned.

    Args:
        call: The call, in canonical form.
        outputs: Tensors of the output, in order.
        expectations: What is known about each of them so far.
    """

    call: Sample
    outputs: tuple[torch.Tensor, ...]
    expectations: tuple[Expectation, ...]


def refine_expectations(
    module: torch.nn.Module, calls: Sequence[EagerCall], *, seed: int, max_parameters: int
) -> tuple[list[tuple[Expectation, ...]], str | None]:
    """Add usual sizes, tolerances, and, where a copy of the module runs in float64, exact values and noise.

    The noise of an output is the largest error of the original against the float64 run over all calls. An integer or
    bool that changes when weights and inputs are changed by about their rounding may take any of the values seen then;
    that is looked at when a candidate gives other ones.

    Args:
        module: The original module; it is not changed.
        calls: Calls with the original's outputs, at least one, all with the same number of output tensors.
        seed: Seed of the changes by rounding.
        max_parameters: Above this many parameters no float64 copy is made.

    Returns:
        The expectations of each call, and why the float64 run could not be used, if it could not.
    """
    precision = coarsest_dtype(module, calls[0].call)
    copied, runs, note = _float64_runs(module, calls, max_parameters)
    integers = RoundedIntegers(
        module, [call.call for call in calls], [call.outputs for call in calls], runs,
        precision=precision, seed=seed, max_parameters=max_parameters,
    )  # fmt: skip
    refined: list[list[Expectation]] = [[] for _ in calls]
    for position in range(len(calls[0].outputs)):
        outputs = [call.outputs[position] for call in calls]
        known = [call.expectations[position] for call in calls]
        if tolerance_for(outputs[0].dtype) is None:
            column = [
                replace(each, rounded=partial(integers.alternatives, number, position))
                for number, each in enumerate(known)
            ]
        else:
            exact = [_usable(output, run[position]) for output, run in zip(outputs, runs, strict=False)]
            exact += [None] * (len(calls) - len(exact))
            rounding = _Rounding(copied, calls, precision, position)
            column, problem = _refine_floats(outputs, known, exact, _limits(precision), rounding)
            note = note or problem
        for row, expectation in zip(refined, column, strict=True):
            row.append(expectation)
    return [tuple(row) for row in refined], note


def coarsest_dtype(module: torch.nn.Module, call: Sample) -> torch.dtype:
    """Return the coarsest floating point dtype that a module computes in, as far as that can be seen from outside.

    Args:
        module: The module.
        call: A call of it.
    """
    inputs = [tensor for _, tensor in tensors_with_locators(call)]
    tensors = [*module.parameters(), *module.buffers(), *inputs]
    dtypes = {tensor.dtype for tensor in tensors if tensor.is_floating_point()}
    for device in {tensor.device.type for tensor in tensors}:
        if torch.is_autocast_enabled(device):
            dtypes.add(torch.get_autocast_dtype(device))
    return max(dtypes, key=lambda dtype: _limits(dtype).floor, default=torch.float32)


def _limits(dtype: torch.dtype) -> Tolerance:
    found = tolerance_for(dtype)
    assert found is not None, dtype
    return found


def _float64_runs(
    module: torch.nn.Module, calls: Sequence[EagerCall], max_parameters: int
) -> tuple[Float64Copy | None, list[list[torch.Tensor]], str | None]:
    """Run all calls in float64."""
    copied: Float64Copy | None = None
    runs: list[list[torch.Tensor]] = []
    try:
        copied = Float64Copy(module, max_parameters)
        for call in calls:
            run = copied.run(call.call)
            if len(run) != len(call.outputs):
                raise Float64Unavailable(f"it returns {len(run)} tensors there instead of {len(call.outputs)}")
            runs.append(run)
    except Float64Unavailable as unavailable:
        return copied, runs, f"no float64 run, so the original's own output is the reference: {unavailable}"
    return copied, runs, None


@dataclass(frozen=True)
class _Rounding:
    """Tells whether rounding alone explains how far one output of the original is from the float64 run."""

    copied: Float64Copy | None
    calls: Sequence[EagerCall]
    dtype: torch.dtype
    position: int

    def explains(self, number: int, right: torch.Tensor, expectation: Expectation, noise: float) -> bool:
        """Compare the error of the original in one call with that of a float64 run that rounds every result."""
        if self.copied is None:
            return False
        call = self.calls[number]
        try:
            rounded = self.copied.rounded_run(call.call, self.dtype)[self.position]
        except (Float64Unavailable, IndexError):
            return False
        output = call.outputs[self.position]
        if rounded.shape != right.shape:
            return False
        error = measure(right, rounded, expectation, mask_from=output).relative_l2
        return noise <= _MOST_EXPLAINED * error


def _usable(output: torch.Tensor, exact: torch.Tensor) -> torch.Tensor | None:
    """Return a float64 result if it can stand for the output: same shape, and finite wherever the output is."""
    if exact.shape != output.shape or exact.layout != output.layout or exact.is_complex() != output.is_complex():
        return None
    finite = as_real_float64(output).isfinite()
    return exact if bool(as_real_float64(exact).isfinite()[finite].all()) else None


def _refine_floats(
    outputs: Sequence[torch.Tensor],
    known: Sequence[Expectation],
    exact: Sequence[torch.Tensor | None],
    coarsest: Tolerance,
    rounding: _Rounding,
) -> tuple[list[Expectation], str | None]:
    own = _limits(outputs[0].dtype)
    widest = coarser(own, coarsest)
    scale = _usual_size(outputs, known)
    sized = [replace(expectation, scale=scale) for expectation in known]
    if any(expectation.is_random for expectation in known):
        return [replace(expectation, tolerance=widest) for expectation in sized], None
    errors = {
        number: measure(right, output, expectation, mask_from=output).relative_l2
        for number, (right, output, expectation) in enumerate(zip(exact, outputs, sized, strict=True))
        if right is not None
    }
    if not errors:
        return [replace(expectation, tolerance=widest) for expectation in sized], None
    worst = max(errors, key=lambda number: errors[number])
    noise = errors[worst]
    # A float32 output of a bfloat16 computation carries the noise of the latter.
    tolerance = own if noise <= own.max_noise else widest
    note = None
    if tolerance.max_noise < noise <= _MOST_EXPLAINED * tolerance.max_noise and rounding.explains(
        worst, _given(exact[worst]), sized[worst], noise
    ):
        note = (
            f"the original's own rounding makes a difference of {noise:.2g} (relative L2) to the float64 run; right "
            f"candidates may differ by {tolerance.allowed(noise):.2g}"
        )
    elif noise > tolerance.max_noise:
        problem = (
            f"the float64 run differs from the original by {noise:.2g} (relative L2), more than rounding explains "
            f"({tolerance.max_noise:.2g}), so the original's own output is the reference"
        )
        return [replace(expectation, tolerance=widest) for expectation in sized], problem
    return [
        replace(expectation, tolerance=tolerance, noise=noise, exact=right)
        for expectation, right in zip(sized, exact, strict=True)
    ], note


def _given(tensor: torch.Tensor | None) -> torch.Tensor:
    assert tensor is not None
    return tensor


def _usual_size(outputs: Sequence[torch.Tensor], known: Sequence[Expectation]) -> float:
    """Return the median over all calls and rows of the root mean square of the finite elements."""
    sizes: list[float] = []
    for output, expectation in zip(outputs, known, strict=True):
        if output.numel() == 0:
            continue
        values = as_real_float64(output)
        values = values.where(values.isfinite(), 0.0)
        axis = expectation.batch_axis
        rows = values.reshape(1, -1) if axis is None else values.movedim(axis, 0).reshape(output.shape[axis], -1)
        sizes.extend(rows.square().mean(dim=1).sqrt().tolist())
    return statistics.median(sizes) if sizes else 0.0
