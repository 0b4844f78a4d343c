"""Compare a candidate with the original module: values on every call, then how it behaves from call to call."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch

from aitune.torch.module.graph_spec import GraphSpec
from aitune.torch.module.locator import format_locator
from aitune.torch.module.preserved_state import StateChanges, preserved_random_state, preserved_state
from aitune.torch.module.sample import Sample
from aitune.torch.task.accuracy_budget import AccuracyBudget
from aitune.torch.task.behaviour import (
    find_changed_setting,
    find_changed_state,
    find_modified_input,
    find_overwritten,
    find_shared_input,
    global_settings,
)
from aitune.torch.task.comparison import Comparison, compare_outputs
from aitune.torch.task.original_run import same_values
from aitune.torch.task.outcome import Agreement, OutputAgreement, Rejection
from aitune.torch.task.probes import compare_probes
from aitune.torch.task.reference import NUM_REPEATS
from aitune.torch.task.reference_call import ReferenceCall, References
from aitune.torch.task.row_independence import compare_row
from aitune.torch.task.structure import clone_tensors, tensors_with_locators

__all__ = ["check", "compare_outputs"]

# A candidate that answers the same under this many seeds draws nothing.
_NUM_SEEDS = 4


def check(
    infer: Callable[..., Any],
    references: References,
    *,
    budget: AccuracyBudget | None = None,
    module: torch.nn.Module | None = None,
    equal_symbols: Sequence[Sequence[str]] = (),
    survives_bad_indices: bool = False,
) -> Agreement:
    """Compare a callable with the original module on every reference call.

    On each call, cheapest first: structure and types, dtypes, shapes, finiteness, values; inputs and buffers left as
    the original leaves them; the output of the call before untouched. After the first disagreement the other calls are
    made all the same, so that it is known where else it is wrong. When all agree: the first call made again gives the
    same answer, rows of a batch do not depend on each other where they do not in the original, what is random is drawn
    anew, and the user's metric is high enough. At last it is seen what becomes of NaN, infinities and ids beyond their
    table; that rejects a candidate only where the references say so.

    Args:
        infer: Takes calls in the canonical form of the graph spec and returns what the original would.
        references: What the original module answers.
        budget: Limits of the user in place of those of rounding, for a candidate that gives precision away.
        module: The original module, when ``infer`` may run it or change its state: it is put back after each call.
        equal_symbols: Groups of symbols that ``infer`` takes for one; calls where they differ never reach it in use, so
            they are left out.
        survives_bad_indices: Whether ``infer`` may be called with an id beyond its table; some runtimes end the
            process on one.

    Returns:
        The figures, the calls compared, and what disagrees.

    Raises:
        AITuneUserInputError: The metric of the budget raised or returned no number.
        Exception: Whatever ``infer`` raises before anything disagreed, as it is.
    """
    checking = _Check(infer, references.within(equal_symbols), budget, module)
    with preserved_random_state(), torch.no_grad(), _state_of_references(module, references):
        failures = checking.compare_calls()
        rejection = next(iter(failures), None) or checking.compare_repeats() or checking.compare_rows()
        rejection = rejection or checking.compare_draws() or checking.compare_metric()
        deviations = () if rejection is not None else checking.compare_exceptional(survives_bad_indices)
    if references.rejects_deviations:
        rejection = rejection or next(iter(deviations), None)
    return Agreement(
        rejection is None,
        tuple(checking.figures.values()),
        rejection,
        tuple(checking.calls),
        tuple(checking.notes),
        tuple(failures) or (() if rejection is None else (rejection,)),
        checking.metric,
        deviations,
    )


@contextmanager
def _state_of_references(module: torch.nn.Module | None, references: References) -> Iterator[None]:
    """Let the module have the buffers that it had when the original ran: measuring has advanced them since."""
    if module is None or not references.buffers_before:
        yield
        return
    with preserved_state(module):
        for name, buffer in module.named_buffers():
            before = references.buffers_before.get(name)
            if before is not None and before.shape == buffer.shape:
                buffer.copy_(before)
        yield


def metric_of_original(references: References, budget: AccuracyBudget) -> float | None:
    """Compute the user's metric of the original module against itself: what a perfect candidate gets.

    Args:
        references: What the original module answers.
        budget: The user's budget.

    Returns:
        The value; ``None`` where the budget has no metric.

    Raises:
        AITuneUserInputError: The metric raised or returned no number.
    """
    if budget.metric is None:
        return None
    calls = [call for call in references.calls if call.is_recorded]
    outputs = [call.output for call in calls]
    return budget.measure(outputs, outputs, [call.call for call in calls])


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
        self.notes: list[str] = list(references.notes)
        self.metric: float | None = None
        self._infer = infer
        self._references = references
        self._budget = budget
        self._module = module
        self._row_calls = {row.where for row in references.rows}
        # Copies of outputs that later checks need, by the name of the call.
        self._kept: dict[str, Any] = {}
        self._draws_agree = True
        if module is None and any(call.buffers_after for call in references.calls):
            self.notes.append("what the candidate does to the buffers of the module is not compared")

    # -- every call ------------------------------------------------------------------------------------------------

    def compare_calls(self) -> list[Rejection]:
        """Compare every reference call, and see that no output is overwritten by the next call."""
        failures: list[Rejection] = []
        previous: tuple[ReferenceCall, Any, Any] | None = None
        for number, reference in enumerate(self._references.calls):
            self.calls.append(reference.where)
            settings = global_settings()
            try:
                call, output, changes = self._run(reference.call)
            except Exception as error:
                if not failures:
                    raise
                text = f"{type(error).__name__}: {error}"
                failures.append(Rejection("raised", "output", None, text, "an answer", "none", reference.where))
                previous = None
                continue
            snapshot = clone_tensors(output)
            overwritten = None if previous is None else find_overwritten(*previous, reference.where)
            found = overwritten or self._compare_call(reference, call, output, changes)
            found = found or find_changed_setting(settings, reference.where)
            if found is not None:
                failures.append(found)
            previous = (reference, output, snapshot)
            if number == 0 or reference.where in self._row_calls or self._needs_outputs(reference):
                self._kept[reference.where] = snapshot
        return failures

    def _compare_call(
        self, reference: ReferenceCall, call: Sample, output: Any, changes: StateChanges | None
    ) -> Rejection | None:
        graph_spec: GraphSpec = self._references.graph_spec
        comparison = compare_outputs(
            reference.output, output, reference.expectations, where=reference.where, budget=self._budget
        )
        found = self._record(comparison) or find_modified_input(reference, call, graph_spec)
        found = found or find_shared_input(reference, output, call)
        if found is None and changes is not None and not self._references.is_random:
            found = find_changed_state(reference, changes.after, self._budget)
        if found is None and self._references.is_random:
            self._compare_seeded(reference, output)
        return found

    def _record(self, comparison: Comparison) -> Rejection | None:
        """Keep the worst figures of every output over all calls."""
        for new in comparison.outputs:
            old = self.figures.get(new.output)
            self.figures[new.output] = new if old is None else _worst(old, new)
        return comparison.rejection

    # -- the same call again ---------------------------------------------------------------------------------------

    def compare_repeats(self) -> Rejection | None:
        """Make the first call again and again: the answer stays, or goes on as the original's does."""
        reference = self._references.calls[0]
        expected = self._references.sequence or (self._kept[reference.where],) * NUM_REPEATS
        # Only a sequence comes from the original, whose float64 run belongs to its first answer alone.
        expectations = tuple(replace(known, exact=None) for known in reference.expectations)
        with self._preserved():
            for number, right in enumerate(expected, start=1):
                call = clone_tensors(reference.call)
                torch.manual_seed(self._references.seed)
                output = self._infer(*call.args, **call.kwargs)
                where = f"{reference.where}, call {number} of {len(expected)} in a row"
                found = compare_outputs(right, output, expectations, where=where, budget=self._budget).rejection
                if found is not None:
                    return replace(found, check="repeat")
        return None

    # -- rows of a batch -------------------------------------------------------------------------------------------

    def compare_rows(self) -> Rejection | None:
        """Run rows of a batch alone and compare them with the same rows inside the batch."""
        if self._references.rows and self._budget is not None and self._budget.max_relative_error is None:
            self.notes.append("row independence is not checked: the budget sets no max_relative_error")
            return None
        by_name = {reference.where: reference for reference in self._references.calls}
        for row in self._references.rows:
            _, alone, _ = self._run(row.call)
            found = compare_row(by_name[row.where], self._kept[row.where], alone, row.row, self._budget).rejection
            if found is not None:
                return replace(found, check="row independence")
        return None

    # -- what is random --------------------------------------------------------------------------------------------

    def _compare_seeded(self, reference: ReferenceCall, output: Any) -> None:
        """See whether a random output has the original's values when both start from one seed; it need not."""
        if self._draws_agree:
            known = [replace(e, is_random=not e.is_random) for e in reference.expectations]
            comparison = compare_outputs(reference.output, output, known, where=reference.where, budget=self._budget)
            self._draws_agree = comparison.rejection is None
            if self._draws_agree:
                self._record(comparison)

    def compare_draws(self) -> Rejection | None:
        """See that what is random in the original is drawn anew by the candidate, and say what could be compared."""
        if not self._references.is_random:
            return None
        reference = self._references.calls[0]
        random = [number for number, known in enumerate(reference.expectations) if known.is_random]
        first = tensors_with_locators(self._kept[reference.where])
        fixed = set(random)
        for offset in range(1, _NUM_SEEDS):
            _, output, _ = self._run(reference.call, self._references.seed + offset)
            now = tensors_with_locators(output)
            fixed = {n for n in fixed if n < len(now) and same_values(first[n][1], now[n][1])}
        if fixed:
            place = format_locator(first[min(fixed)][0])
            got = f"the same values under {_NUM_SEEDS} seeds"
            return Rejection("random", place, None, got, "other values every time", "none", reference.where)
        self.notes.append(
            "random values agree with the original's under one seed"
            if self._draws_agree
            else "values not comparable: forward is random, and the candidate draws other numbers from the same seed"
        )
        return None

    # -- exceptional values ----------------------------------------------------------------------------------------

    def compare_exceptional(self, survives_bad_indices: bool) -> tuple[Rejection, ...]:
        """See what becomes of NaN and infinities, and of ids beyond their table where that is safe."""
        probes = [probe for probe in self._references.probes if survives_bad_indices or not probe.is_index]
        if len(probes) < len(self._references.probes):
            self.notes.append("ids beyond their table are not tried: this candidate may end the process on them")
        return tuple(compare_probes(lambda call: self._run(call)[1], probes, self._budget))

    # -- the user's metric -----------------------------------------------------------------------------------------

    def compare_metric(self) -> Rejection | None:
        """Compute the user's metric on the recorded samples."""
        if self._budget is None or self._budget.metric is None or self._budget.min_metric is None:
            return None
        calls = [call for call in self._references.calls if call.is_recorded]
        samples: Sequence[Sample] = [call.call for call in calls]
        value = self._budget.measure([call.output for call in calls], [self._kept[c.where] for c in calls], samples)
        self.metric = value
        self.notes.append(f"metric {value:.6g}, at least {self._budget.min_metric:.6g} is required")
        if value >= self._budget.min_metric:
            return None
        limit = f"at least {self._budget.min_metric:.6g}"
        return Rejection("metric", "output", None, f"{value:.6g}", limit, "none", "all samples")

    def _needs_outputs(self, reference: ReferenceCall) -> bool:
        return self._budget is not None and self._budget.metric is not None and reference.is_recorded

    # -- running ---------------------------------------------------------------------------------------------------

    def _run(self, reference_call: Sample, seed: int | None = None) -> tuple[Sample, Any, StateChanges | None]:
        """Run a copy of a call; return the copy, the output, and what became of the module's state."""
        call = clone_tensors(reference_call)
        with self._preserved() as changes:
            torch.manual_seed(self._references.seed if seed is None else seed)
            output = self._infer(*call.args, **call.kwargs)
        return call, output, changes

    @contextmanager
    def _preserved(self) -> Iterator[StateChanges | None]:
        if self._module is None:
            yield None
            return
        with preserved_state(self._module) as changes:
            yield changes


def _worst(first: OutputAgreement, second: OutputAgreement) -> OutputAgreement:
    cosines = [figure.cosine for figure in (first, second) if figure.cosine is not None]
    return replace(
        second,
        relative_l2=max(first.relative_l2, second.relative_l2),
        relative_max=max(first.relative_max, second.relative_max),
        cosine=min(cosines, default=None),
    )
