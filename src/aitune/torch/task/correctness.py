"""Compare a candidate with the original module: values on every call, then how it behaves from call to call."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import torch

from aitune.torch.module.graph_spec import GraphSpec
from aitune.torch.module.locator import format_locator
from aitune.torch.module.sample import Sample
from aitune.torch.task.accuracy_budget import AccuracyBudget
from aitune.torch.task.comparison import Comparison, as_real_float64, compare_outputs
from aitune.torch.task.module_state import preserved_random_state, preserved_state
from aitune.torch.task.outcome import Agreement, OutputAgreement, Rejection
from aitune.torch.task.reference import (
    NUM_REPEATS,
    ReferenceCall,
    References,
    compare_row,
    same_values,
    shares_memory,
)
from aitune.torch.task.structure import clone_tensors, tensors_with_locators

__all__ = ["check", "compare_outputs"]


def check(
    infer: Callable[..., Any],
    references: References,
    *,
    budget: AccuracyBudget | None = None,
    module: torch.nn.Module | None = None,
    equal_symbols: Sequence[Sequence[str]] = (),
) -> Agreement:
    """Compare a callable with the original module on every reference call.

    On each call, cheapest first: structure and types, dtypes, shapes, finiteness, values; inputs left as the original
    leaves them; the output of the call before untouched. Then: the first call made again gives the same answer, and
    rows of a batch do not depend on each other where they do not in the original. The first disagreement ends it.

    Args:
        infer: Takes calls in the canonical form of the graph spec and returns what the original would.
        references: What the original module answers.
        budget: Limits of the user in place of those of rounding, for a candidate that gives precision away.
        module: The original module, when ``infer`` may run it: its state is put back after each call.
        equal_symbols: Groups of symbols that ``infer`` takes for one; calls where they differ never reach it in use, so
            they are left out.

    Returns:
        The figures, the calls compared, and the first disagreement.

    Raises:
        AITuneUserInputError: The metric of the budget raised or returned no number.
        Exception: Whatever ``infer`` raises, as it is.
    """
    served, left_out = _served_calls(references, equal_symbols)
    checking = _Check(infer, replace(references, calls=served), budget, module)
    with preserved_random_state(), torch.no_grad():
        rejection = checking.compare_calls() or checking.compare_repeats() or checking.compare_rows()
        rejection = rejection or checking.compare_metric()
    return Agreement(
        rejection is None,
        tuple(checking.figures.values()),
        rejection,
        tuple(checking.calls),
        (*references.notes, *left_out, *checking.notes),
    )


def _served_calls(
    references: References, equal_symbols: Sequence[Sequence[str]]
) -> tuple[tuple[ReferenceCall, ...], list[str]]:
    """Drop the made-up calls, all at the end, that the guard of the candidate keeps away from it."""
    served: list[ReferenceCall] = []
    notes: list[str] = []
    for reference in references.calls:
        sizes = references.graph_spec.symbol_sizes(reference.call)
        apart = [group for group in equal_symbols if len({sizes[name] for name in group if name in sizes}) > 1]
        if apart and not reference.is_recorded:
            notes.append(f"{reference.where} was not compared: the candidate needs {' = '.join(apart[0])}")
        else:
            served.append(reference)
    return tuple(served), notes


class _Check:
    """One comparison of one callable; collects figures, names of calls and notes on the way."""

    def __init__(
        self,
        infer: Callable[..., Any],
        references: References,
        budget: AccuracyBudget | None,
        module: torch.nn.Module | None,
    ) -> None:
        self.figures: dict[str, OutputAgreement] = {}
        self.calls: list[str] = []
        self.notes: list[str] = []
        self._infer = infer
        self._references = references
        self._budget = budget
        self._module = module
        self._row_calls = {row.where for row in references.rows}
        # Copies of outputs that later checks need, by the name of the call.
        self._kept: dict[str, Any] = {}

    def compare_calls(self) -> Rejection | None:
        """Compare every reference call, and see that no output is overwritten by the next call."""
        previous: tuple[ReferenceCall, Any, Any] | None = None
        for number, reference in enumerate(self._references.calls):
            call = clone_tensors(reference.call)
            with self._preserved():
                output = self._infer(*call.args, **call.kwargs)
            snapshot = clone_tensors(output)
            self.calls.append(reference.where)
            rejection = (
                (None if previous is None else _find_overwritten(*previous, reference.where))
                or self._record(
                    compare_outputs(
                        reference.output, output, reference.expectations, where=reference.where, budget=self._budget
                    )
                )
                or _find_modified_input(reference, call, self._references.graph_spec)
                or _find_shared_input(reference, output, call)
            )
            if rejection is not None:
                return rejection
            previous = (reference, output, snapshot)
            if number == 0 or reference.where in self._row_calls or self._needs_outputs(reference):
                self._kept[reference.where] = snapshot
        return None

    def compare_repeats(self) -> Rejection | None:
        """Make the first call again and again: the answer stays, or goes on as the original's does."""
        reference = self._references.calls[0]
        expected = self._references.sequence or (self._kept[reference.where],) * NUM_REPEATS
        # Only a sequence comes from the original, whose float64 run belongs to its first answer alone.
        expectations = tuple(replace(known, exact=None) for known in reference.expectations)
        with self._preserved():
            for number, right in enumerate(expected, start=1):
                call = clone_tensors(reference.call)
                output = self._infer(*call.args, **call.kwargs)
                where = f"{reference.where}, call {number} of {len(expected)} in a row"
                found = compare_outputs(right, output, expectations, where=where, budget=self._budget).rejection
                if found is not None:
                    return replace(found, check="repeat")
        return None

    def compare_rows(self) -> Rejection | None:
        """Run rows of a batch alone and compare them with the same rows inside the batch."""
        if self._references.rows and self._budget is not None and self._budget.max_relative_error is None:
            self.notes.append("row independence is not checked: the budget sets no max_relative_error")
            return None
        served = {reference.where: reference for reference in self._references.calls}
        for row in self._references.rows:
            if row.where not in served:
                continue
            call = clone_tensors(row.call)
            with self._preserved():
                alone = self._infer(*call.args, **call.kwargs)
            reference = served[row.where]
            found = compare_row(reference, self._kept[row.where], alone, row.row, self._budget).rejection
            if found is not None:
                return replace(found, check="row independence")
        return None

    def compare_metric(self) -> Rejection | None:
        """Compute the user's metric on the recorded samples."""
        if self._budget is None or self._budget.metric is None or self._budget.min_metric is None:
            return None
        calls = [call for call in self._references.calls if call.is_recorded]
        samples: Sequence[Sample] = [call.call for call in calls]
        value = self._budget.measure([call.output for call in calls], [self._kept[c.where] for c in calls], samples)
        self.notes.append(f"metric {value:.6g}, at least {self._budget.min_metric:.6g} is required")
        if value >= self._budget.min_metric:
            return None
        limit = f"at least {self._budget.min_metric:.6g}"
        return Rejection("metric", "output", None, f"{value:.6g}", limit, "none", "all samples")

    def _needs_outputs(self, reference: ReferenceCall) -> bool:
        return self._budget is not None and self._budget.metric is not None and reference.is_recorded

    def _preserved(self) -> Any:
        return nullcontext() if self._module is None else preserved_state(self._module)

    def _record(self, comparison: Comparison) -> Rejection | None:
        """Keep the worst figures of every output over all calls."""
        for new in comparison.outputs:
            old = self.figures.get(new.output)
            self.figures[new.output] = new if old is None else _worst(old, new)
        return comparison.rejection


def _worst(first: OutputAgreement, second: OutputAgreement) -> OutputAgreement:
    cosines = [figure.cosine for figure in (first, second) if figure.cosine is not None]
    return replace(
        second,
        relative_l2=max(first.relative_l2, second.relative_l2),
        relative_max=max(first.relative_max, second.relative_max),
        cosine=min(cosines, default=None),
    )


def _find_overwritten(reference: ReferenceCall, output: Any, snapshot: Any, next_where: str) -> Rejection | None:
    """See whether the output of one call still is what it was when the next call was made."""
    for (locator, now), (_, then) in zip(tensors_with_locators(output), tensors_with_locators(snapshot), strict=True):
        if not same_values(now, then):
            index = _first_difference(now, then)
            got, expected = _at(now, index), _at(then, index)
            return Rejection(
                "aliasing", format_locator(locator), index, f"{got} after the next call ({next_where})", expected,
                "an output of its own for every call", reference.where,
            )  # fmt: skip
    return None


def _find_modified_input(reference: ReferenceCall, call: Sample, graph_spec: GraphSpec) -> Rejection | None:
    """See whether the inputs are as the original leaves them."""
    before = graph_spec.input_tensors(*reference.call)
    after = graph_spec.input_tensors(*call)
    for spec, old, new, changed in zip(
        graph_spec.input_spec.tensor_specs, before, after, reference.inputs_after, strict=True
    ):
        expected = old if changed is None else changed
        if changed is not None and compare_outputs([expected], [new]).rejection is None:
            continue
        if not same_values(expected, new):
            index = _first_difference(new, expected)
            limit = "as it was" if changed is None else "as the original leaves it"
            place = format_locator(spec.locator, "input")
            return Rejection(
                "input modified", place, index, _at(new, index), _at(expected, index), limit, reference.where
            )
    return None


def _find_shared_input(reference: ReferenceCall, output: Any, call: Sample) -> Rejection | None:
    """See whether an output is a view of an input where the original's is not: changing one would change the other."""
    inputs = [tensor for _, tensor in tensors_with_locators(call)]
    outputs = tensors_with_locators(output)
    for (locator, tensor), may_share in zip(outputs, reference.shares_input, strict=True):
        if not may_share and shares_memory(tensor, inputs):
            place = format_locator(locator)
            expected = "memory of its own"
            return Rejection("aliasing", place, None, "the memory of an input", expected, "none", reference.where)
    return None


def _first_difference(first: torch.Tensor, second: torch.Tensor) -> tuple[int, ...] | None:
    if first.shape != second.shape or first.dim() == 0:
        return None
    one, other = as_real_float64(first), as_real_float64(second)
    different = ~((one == other) | (one.isnan() & other.isnan()))
    different = different.any(dim=-1) if first.is_complex() else different
    return tuple(int(i) for i in torch.nonzero(different)[0])


def _at(tensor: torch.Tensor, index: tuple[int, ...] | None) -> str:
    if index is None:
        return str(tensor.item()) if tensor.numel() == 1 else f"shape {tuple(tensor.shape)}"
    return str(tensor[index].item())
