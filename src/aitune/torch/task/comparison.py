"""Compare one output with its reference, value by value; nothing is run here."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from aitune.exceptions import AITuneUserInputError
from aitune.torch.module.locator import format_locator
from aitune.torch.module.tensor_spec import Axis
from aitune.torch.task.accuracy_budget import AccuracyBudget
from aitune.torch.task.outcome import OutputAgreement, Rejection
from aitune.torch.task.structure import find_structure_difference, tensors_with_locators
from aitune.torch.task.tolerance import Tolerance, tolerance_for


@dataclass(frozen=True)
class Expectation:
    """What is known about one output tensor beside its value.

    Args:
        tolerance: Limits; ``None`` takes those of the reference's dtype.
        noise: Relative L2 error of the module itself against its float64 run.
        exact: The float64 run, same shape as the output; it is compared with instead of the reference.
        alternatives: For integers and bools: other values that are right as well.
        rounded: For integers and bools: gives further ones, which hang on rounding; asked only where values differ.
        tied: For integers: which elements hang on the order of equal values; they may be anything in the range of such.
        scale: Usual size (root mean square) of an element; ``None`` takes the reference's own.
        batch_axis: Position of the axis that holds the rows of a batch, if there is one.
        batch_factor: Entries along that axis that belong to one row.
        is_random: Whether the value differs from run to run, so that it cannot be compared.
    """

    tolerance: Tolerance | None = None
    noise: float | None = None
    exact: torch.Tensor | None = None
    alternatives: tuple[torch.Tensor, ...] = ()
    rounded: Callable[[], tuple[torch.Tensor, ...]] | None = None
    tied: torch.Tensor | None = None
    scale: float | None = None
    batch_axis: int | None = None
    batch_factor: int = 1
    is_random: bool = False


@dataclass(frozen=True)
class Comparison:
    """Result of comparing one output.

    Args:
        outputs: The figures of every output tensor that was compared.
        rejection: The first disagreement, if any.
    """

    outputs: tuple[OutputAgreement, ...] = ()
    rejection: Rejection | None = None


@dataclass(frozen=True)
class Figures:
    """How far a tensor is from another one; the worst of the whole tensor and of each row.

    Args:
        relative_l2: ``|out - ref| / |ref|`` with the Euclidean norm.
        relative_max: Largest absolute error over the largest ``|ref|``.
        cosine: Cosine between the two; ``None`` where one of them is zero.
        worst_row: Row with the largest relative L2.
    """

    relative_l2: float
    relative_max: float
    cosine: float | None
    worst_row: int


def batch_axis_of(axes: Sequence[Axis]) -> tuple[int, int] | None:
    """Return position and factor of the first axis that holds the rows of a batch, if there is one.

    Args:
        axes: Axes of a tensor.
    """
    for position, axis in enumerate(axes):
        if axis.symbol is not None and axis.symbol.is_batch:
            return position, axis.size
    return None


def compare_outputs(
    reference: Any,
    candidate: Any,
    expectations: Sequence[Expectation] | None = None,
    *,
    where: str = "call",
    budget: AccuracyBudget | None = None,
) -> Comparison:
    """Compare an output with the reference: structure and types, dtypes, shapes, finiteness, values, in that order.

    Args:
        reference: Output of the original module, nested as it is.
        candidate: Output of the candidate.
        expectations: One for each tensor of the reference, in the order of the structure.
        where: Name of the call, for the rejection.
        budget: Limits of the user in place of those of rounding; its metric is not computed here.

    Returns:
        The figures of each tensor, and the first disagreement.

    Raises:
        AITuneUserInputError: There is not one expectation for each tensor.
    """
    difference = find_structure_difference(reference, candidate)
    if difference is not None:
        place = format_locator(difference.locator)
        return Comparison(
            (),
            Rejection(difference.check, place, None, difference.got, difference.expected, "none", where),
        )
    expected, got = tensors_with_locators(reference), tensors_with_locators(candidate)
    if expectations is None:
        expectations = [Expectation()] * len(expected)
    if len(expectations) != len(expected):
        raise AITuneUserInputError(
            f"the reference holds {len(expected)} tensors, got {len(expectations)} expectations; give one for each"
        )
    pairs = [
        _Pair(format_locator(locator), ref, out, expectation, where)
        for (locator, ref), (_, out), expectation in zip(expected, got, expectations, strict=True)
    ]
    # Cheapest first, over all outputs.
    for find in (_find_kind, _find_dtype, _find_shape, _find_not_finite):
        for pair in pairs:
            rejection = find(pair)
            if rejection is not None:
                return Comparison((), rejection)
    figures: list[OutputAgreement] = []
    for pair in pairs:
        if not pair.expectation.is_random:
            agreement, rejection = _compare_values(pair, budget)
            figures.append(agreement)
            if rejection is not None:
                return Comparison(tuple(figures), rejection)
    return Comparison(tuple(figures))


@dataclass(frozen=True)
class _Pair:
    output: str
    reference: torch.Tensor
    candidate: torch.Tensor
    expectation: Expectation
    where: str

    def reject(
        self, check: str, got: str, expected: str, allowed: str, index: Sequence[int] | None = None
    ) -> Rejection:
        return Rejection(
            check, self.output, None if index is None else tuple(index), got, expected, allowed, self.where
        )

    def reject_at(self, check: str, mask: torch.Tensor, allowed: str) -> Rejection:
        """Reject at the first element of a mask that has the shape of the tensors."""
        index = tuple(int(i) for i in torch.nonzero(mask)[0])
        return self.reject(check, str(self.candidate[index].item()), str(self.reference[index].item()), allowed, index)


def _find_kind(pair: _Pair) -> Rejection | None:
    got, expected = _kind_of(pair.candidate), _kind_of(pair.reference)
    return None if got == expected else pair.reject("type", got, expected, "none")


def _kind_of(tensor: torch.Tensor) -> str:
    """Say what else than values and shape makes a tensor usable in one place and not in another."""
    # Outside of inference mode such a tensor refuses to be written in place.
    inference = " made for inference only" if tensor.is_inference() and not torch.is_inference_mode_enabled() else ""
    graph = " that requires grad" if tensor.requires_grad and not torch.is_grad_enabled() else ""
    return f"{tensor.layout} on {tensor.device.type}{inference}{graph}"


def _find_dtype(pair: _Pair) -> Rejection | None:
    if pair.candidate.dtype == pair.reference.dtype:
        return None
    return pair.reject("dtype", str(pair.candidate.dtype), str(pair.reference.dtype), "none")


def _find_shape(pair: _Pair) -> Rejection | None:
    if pair.candidate.shape == pair.reference.shape:
        return None
    return pair.reject("shape", str(tuple(pair.candidate.shape)), str(tuple(pair.reference.shape)), "none")


def _find_not_finite(pair: _Pair) -> Rejection | None:
    if not (pair.reference.is_floating_point() or pair.reference.is_complex()):
        return None
    reference, candidate = as_real_float64(pair.reference), as_real_float64(pair.candidate)
    if pair.expectation.is_random:
        wrong = reference.isfinite().all() & ~candidate.isfinite()
    else:
        same = (reference == candidate) | (reference.isnan() & candidate.isnan())
        wrong = ~torch.where(reference.isfinite(), candidate.isfinite(), same)
    wrong = _as_elements(wrong, pair.reference)
    return pair.reject_at("finite", wrong, "NaN and infinities where the reference has them") if wrong.any() else None


def as_real_float64(tensor: torch.Tensor) -> torch.Tensor:
    """Return values as float64; a complex tensor gets a last axis of real and imaginary parts.

    Args:
        tensor: Any tensor of numbers.
    """
    dense = tensor.detach()
    if dense.layout is not torch.strided:
        dense = dense.to_dense()
    if dense.is_complex():
        return torch.view_as_real(dense.to(torch.complex128).resolve_conj())
    return dense.to(torch.float64)


def _as_elements(mask: torch.Tensor, tensor: torch.Tensor) -> torch.Tensor:
    return mask.any(dim=-1) if tensor.is_complex() else mask


def _compare_values(pair: _Pair, budget: AccuracyBudget | None) -> tuple[OutputAgreement, Rejection | None]:
    own = tolerance_for(pair.reference.dtype)
    if own is None:
        return _compare_exactly(pair, budget)
    expectation = pair.expectation
    tolerance = expectation.tolerance or own
    reference = pair.reference if expectation.exact is None else expectation.exact
    figures = measure(reference, pair.candidate, expectation, mask_from=pair.reference)
    allowed = tolerance.allowed(expectation.noise)
    allowed_max = tolerance.peak_factor * allowed
    min_cosine = None
    if budget is not None:
        allowed, allowed_max, min_cosine = _budget_error(budget), math.inf, budget.min_cosine
    agreement = OutputAgreement(
        pair.output, figures.relative_l2, figures.relative_max, figures.cosine, expectation.noise, _finite(allowed)
    )
    # Written so that a NaN figure fails.
    if not figures.relative_l2 <= allowed:
        limit = f"relative L2 error {allowed:.3g}, is {figures.relative_l2:.3g}"
    elif not figures.relative_max <= allowed_max:
        limit = f"largest error over largest value {allowed_max:.3g}, is {figures.relative_max:.3g}"
    elif min_cosine is not None and figures.cosine is not None and not figures.cosine >= min_cosine:
        limit = f"cosine {min_cosine:.6g}, is {figures.cosine:.6g}"
    else:
        return agreement, None
    index = _worst_index(reference, pair, figures.worst_row)
    got, expected = str(pair.candidate[index].item()), str(reference[index].item())
    return agreement, pair.reject("value", got, expected, limit, index)


def _compare_exactly(pair: _Pair, budget: AccuracyBudget | None) -> tuple[OutputAgreement, Rejection | None]:
    known = pair.expectation
    wrong = _wrong_integers(pair, known.alternatives)
    if known.rounded is not None and wrong.any():
        wrong = _wrong_integers(pair, (*known.alternatives, *known.rounded()))
    share = wrong.to(torch.float64).mean().item() if wrong.numel() else 0.0
    allowed = 0.0 if budget is None else _budget_error(budget)
    agreement = OutputAgreement(pair.output, share, share, None, None, _finite(allowed))
    if share <= allowed:
        return agreement, None
    text = f"{int(wrong.sum())} of {wrong.numel()} elements differ"
    limit = f"none, {text}" if allowed == 0.0 else f"a share of {allowed:.3g}, {text}"
    return agreement, pair.reject_at("value", wrong, limit)


def _wrong_integers(pair: _Pair, alternatives: Sequence[torch.Tensor]) -> torch.Tensor:
    wrong = pair.candidate != pair.reference
    for alternative in alternatives:
        wrong &= pair.candidate != alternative
    tied = pair.expectation.tied
    if tied is not None and tied.any():
        # As torch's usual integers: others are not ordered.
        seen = torch.stack([pair.reference, *alternatives])[:, tied].long()
        got = pair.candidate.long()
        wrong &= ~(tied & (got >= seen.min()) & (got <= seen.max()))
    return wrong


def _budget_error(budget: AccuracyBudget) -> float:
    return math.inf if budget.max_relative_error is None else budget.max_relative_error


def _finite(allowed: float) -> float | None:
    return None if math.isinf(allowed) else allowed


def measure(
    reference: torch.Tensor,
    candidate: torch.Tensor,
    expectation: Expectation,
    mask_from: torch.Tensor | None = None,
) -> Figures:
    """Compute how far a tensor is from a reference of the same shape.

    A norm below the usual size of one element counts as that: the output of a scoring head may be near zero for one
    row because large values cancel, and carries their rounding. Where reference and usual size are zero, the figures
    are absolute errors.

    Args:
        reference: What is right.
        candidate: What is judged.
        expectation: Says which axis holds the rows, and the usual size of an element.
        mask_from: Tensor whose infinities and NaN are left out, ``reference`` by default.
    """
    rows = _rows(as_real_float64(reference), reference, expectation)
    error = _rows(as_real_float64(candidate), candidate, expectation) - rows
    masked = reference if mask_from is None else mask_from
    finite = _rows(as_real_float64(masked), masked, expectation).isfinite()
    rows, error = rows.where(finite, 0.0), error.where(finite, 0.0)
    if rows.numel() == 0:
        return Figures(0.0, 0.0, None, 0)
    # Divided by the largest value first, so that squares neither overflow nor vanish.
    unit = rows.abs().max().item() or 1.0
    rows, error = rows / unit, error / unit
    own_size = rows.square().mean().sqrt().item()
    smallest = own_size if expectation.scale is None else expectation.scale / unit
    zero = smallest if smallest > 0.0 else 1.0 / unit
    row_l2 = error.norm(dim=1) / _at_least(rows.norm(dim=1), smallest, zero)
    row_max = error.abs().amax(dim=1) / _at_least(rows.abs().amax(dim=1), smallest, zero)
    all_l2 = error.norm() / _at_least(rows.norm(), smallest, zero)
    return Figures(
        max(all_l2.item(), row_l2.max().item()) if not row_l2.isnan().any() else math.nan,
        row_max.max().item(),
        _smallest_cosine(rows, rows + error),
        int(row_l2.argmax()),
    )


def _rows(values: torch.Tensor, tensor: torch.Tensor, expectation: Expectation) -> torch.Tensor:
    """Arrange values as one line per row of the batch, or as one line where there is no batch axis."""
    if expectation.batch_axis is None or tensor.numel() == 0:
        return values.reshape(1, -1)
    num_rows = tensor.shape[expectation.batch_axis] // expectation.batch_factor
    return values.movedim(expectation.batch_axis, 0).reshape(num_rows, -1)


def _at_least(norms: torch.Tensor, smallest: float, zero: float) -> torch.Tensor:
    return torch.where(norms == 0.0, zero, norms.clamp(min=smallest))


def _smallest_cosine(rows: torch.Tensor, others: torch.Tensor) -> float | None:
    norms, other_norms = rows.norm(dim=1), others.norm(dim=1)
    usable = (norms > 0.0) & (other_norms > 0.0)
    if not usable.any():
        return None
    cosines = (rows * others).sum(dim=1)[usable] / (norms * other_norms)[usable]
    return min(1.0, float(cosines.min()))


def _worst_index(reference: torch.Tensor, pair: _Pair, worst_row: int) -> tuple[int, ...]:
    """Return where the error is largest, within the row that is furthest off."""
    error = (as_real_float64(pair.candidate) - as_real_float64(reference)).abs()
    error = error.where(as_real_float64(pair.reference).isfinite(), -1.0)
    if pair.reference.is_complex():
        error = error.amax(dim=-1)
    axis, factor = pair.expectation.batch_axis, pair.expectation.batch_factor
    start = 0
    if axis is not None:
        start = worst_row * factor
        error = error.narrow(axis, start, factor)
    index = [int(i) for i in torch.unravel_index(error.argmax(), error.shape)]
    if axis is not None:
        index[axis] += start
    return tuple(index)
