"""What the original module answers, how much it rounds, and how it behaves: made once, compared with many times."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from aitune.exceptions import AITuneUserInputError
from aitune.torch.module.graph_spec import GraphSpec
from aitune.torch.module.locator import format_locator
from aitune.torch.module.sample import Sample
from aitune.torch.task.accuracy_budget import AccuracyBudget
from aitune.torch.task.comparison import Comparison, Expectation, as_real_float64, batch_axis_of, compare_outputs
from aitune.torch.task.corner_inputs import DEFAULT_MAX_CORNERS, LabelledCall, labelled_calls
from aitune.torch.task.float64_reference import EagerCall, refine_expectations
from aitune.torch.task.float64_run import DEFAULT_MAX_FLOAT64_PARAMETERS
from aitune.torch.task.module_state import preserved_state
from aitune.torch.task.structure import clone_tensors, tensors_with_locators
from aitune.torch.task.tolerance import Tolerance, tolerance_for

# Calls in a row that must give the same answer: some backends fail only on the second or third.
NUM_REPEATS = 3


@dataclass(frozen=True)
class ReferenceCall:
    """One call and what the original module does with it.

    Args:
        where: Name of the call for people.
        call: The call, in canonical form; clone it before it is run.
        output: What the original module returned, nested as it is.
        expectations: One for each tensor of the output.
        inputs_after: Each input tensor as the forward leaves it; ``None`` where it leaves it alone.
        shares_input: For each output tensor, whether it shares memory with an input.
        is_recorded: Whether the user's data made the call.
    """

    where: str
    call: Sample
    output: Any
    expectations: tuple[Expectation, ...]
    inputs_after: tuple[torch.Tensor | None, ...]
    shares_input: tuple[bool, ...]
    is_recorded: bool


@dataclass(frozen=True)
class SingleRow:
    """A row of a batched call, as a call of its own.

    Args:
        where: Name of the reference call that the row is from.
        row: Which row.
        call: The call with a batch of one.
    """

    where: str
    row: int
    call: Sample


@dataclass(frozen=True)
class References:
    """Everything that candidates of one graph are compared with.

    Args:
        graph_spec: The graph.
        calls: The calls with their outputs, at least one.
        rows: Rows to run alone; empty where the rows of the original influence each other or there is no batch axis.
        sequence: Outputs of the first call made again and again, where the module's state makes them differ.
        notes: What cannot be compared, and why.
    """

    graph_spec: GraphSpec
    calls: tuple[ReferenceCall, ...]
    rows: tuple[SingleRow, ...] = ()
    sequence: tuple[Any, ...] = ()
    notes: tuple[str, ...] = ()

    def within(self, equal_symbols: Sequence[Sequence[str]]) -> References:
        """Return the references without the calls that a candidate leaves to the original module.

        Args:
            equal_symbols: Groups of symbols that the candidate serves only where their values are equal.
        """
        outside = [call for call in self.calls if _differ(self.graph_spec.symbol_sizes(call.call), equal_symbols)]
        if not outside:
            return self
        names = {call.where for call in outside}
        return replace(
            self,
            calls=tuple(call for call in self.calls if call.where not in names),
            rows=tuple(row for row in self.rows if row.where not in names),
            notes=(
                *self.notes,
                f"{len(outside)} made-up calls in which {' or '.join(' and '.join(group) for group in equal_symbols)} "
                f"differ were left out: the original module answers such calls",
            ),
        )

    @property
    def is_random(self) -> bool:
        """Whether the value of an output differs from run to run."""
        return any(expectation.is_random for call in self.calls for expectation in call.expectations)

    @property
    def modifies_inputs(self) -> bool:
        """Whether the forward changes one of its inputs in place."""
        return any(after is not None for call in self.calls for after in call.inputs_after)


def _differ(sizes: Mapping[str, int], equal_symbols: Sequence[Sequence[str]]) -> bool:
    return any(len({sizes[name] for name in group if name in sizes}) > 1 for group in equal_symbols)


def make_references(
    module: torch.nn.Module,
    graph_spec: GraphSpec,
    data: Sequence[Sample],
    *,
    seed: int = 0,
    max_corners: int = DEFAULT_MAX_CORNERS,
    max_float64_parameters: int = DEFAULT_MAX_FLOAT64_PARAMETERS,
) -> References:
    """Run the original module on the recorded calls and at the corners of the range.

    The module's state is as before when this returns, and the calls are not changed.

    Args:
        module: The original module, in the mode that it will be used in.
        graph_spec: The graph.
        data: Recorded calls of the graph, at least one.
        seed: Seed of made-up inputs and of the random generators.
        max_corners: Most corners.
        max_float64_parameters: Above this many parameters no float64 copy is made (8 bytes each).

    Raises:
        AITuneUserInputError: There is no recorded call, the module fails on one, or changes its parameters.
    """
    runs, notes = _run_all(
        module, graph_spec, labelled_calls(graph_spec, data, seed=seed, max_corners=max_corners), seed
    )
    random = _random_outputs(module, graph_spec, runs[0], seed)
    if any(random):
        names = [place for place, is_random in zip(_places(runs[0].output), random, strict=True) if is_random]
        which = "" if all(random) else f" (in {', '.join(names)})"
        notes.append(f"values not comparable: forward is random{which}")
    calls = [_with_expectations(run, graph_spec, random) for run in runs]
    calls, float64_note = _with_float64(module, calls, seed, max_float64_parameters)
    sequence = () if all(random) else _state_sequence(module, calls[0], seed)
    rows, row_note = _single_rows(module, graph_spec, calls, seed)
    notes.extend(note for note in (float64_note, row_note) if note)
    return References(graph_spec, tuple(calls), rows, sequence, tuple(notes))


@dataclass(frozen=True)
class _Run:
    label: LabelledCall
    output: Any
    inputs_after: tuple[torch.Tensor | None, ...]
    shares_input: tuple[bool, ...]
    buffers: tuple[str, ...]


def _places(output: Any) -> list[str]:
    return [format_locator(locator) for locator, _ in tensors_with_locators(output)]


def _run_all(
    module: torch.nn.Module, graph_spec: GraphSpec, labels: Iterable[LabelledCall], seed: int
) -> tuple[list[_Run], list[str]]:
    runs: list[_Run] = []
    notes: list[str] = []
    for label in labels:
        try:
            runs.append(_run(module, graph_spec, label, seed))
        except AITuneUserInputError:
            raise
        except Exception as error:
            text = f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error).strip() else ''}"
            if label.is_recorded:
                raise AITuneUserInputError(
                    f"the original {type(module).__name__} fails on {label.where}: {text}; it must run on the recorded "
                    f"data before anything can be compared with it"
                ) from error
            notes.append(f"{label.where} was not compared: the original does not run on it ({text})")
    changed = sorted({name for run in runs for name in run.buffers})
    if changed:
        notes.append(f"the forward changes the buffer {', '.join(changed)}; its value after a call is not compared")
    return runs, notes


def _run(module: torch.nn.Module, graph_spec: GraphSpec, label: LabelledCall, seed: int) -> _Run:
    before = graph_spec.input_tensors(*label.call)
    call = clone_tensors(label.call)
    with preserved_state(module) as changes, torch.no_grad():
        torch.manual_seed(seed)
        output = module(*call.args, **call.kwargs)
        after = graph_spec.input_tensors(*call)
        shares = tuple(shares_memory(tensor, after) for _, tensor in tensors_with_locators(output))
        output = clone_tensors(output)
    changed = tuple(None if same_values(old, new) else new for old, new in zip(before, after, strict=True))
    return _Run(label, output, changed, shares, changes.buffers)


def shares_memory(tensor: torch.Tensor, others: Iterable[torch.Tensor]) -> bool:
    """Whether a tensor and one of the others are views of one storage.

    Args:
        tensor: A tensor.
        others: The others.
    """
    pointer = _storage_pointer(tensor)
    return pointer != 0 and any(_storage_pointer(other) == pointer for other in others)


def _storage_pointer(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr() if tensor.layout is torch.strided else 0


def same_values(first: torch.Tensor, second: torch.Tensor) -> bool:
    """Whether two tensors have the same shape, dtype and values; NaN equals NaN.

    Args:
        first: A tensor.
        second: Another one.
    """
    if first.shape != second.shape or first.dtype != second.dtype:
        return False
    if not (first.is_floating_point() or first.is_complex()):
        return torch.equal(first, second)
    one, other = as_real_float64(first), as_real_float64(second)
    return bool(((one == other) | (one.isnan() & other.isnan())).all())


def _random_outputs(module: torch.nn.Module, graph_spec: GraphSpec, run: _Run, seed: int) -> list[bool]:
    """Run once more under another seed: an output that is not the same, up to rounding, is random."""
    other = _run(module, graph_spec, run.label, seed + 1)
    pairs = zip(tensors_with_locators(run.output), tensors_with_locators(other.output), strict=False)
    random = [
        not same_values(first, second) and compare_outputs(first, second).rejection is not None
        for (_, first), (_, second) in pairs
    ]
    # An output of another length can only be random as a whole.
    num_outputs = len(tensors_with_locators(run.output))
    return random if len(tensors_with_locators(other.output)) == num_outputs else [True] * num_outputs


def _with_expectations(run: _Run, graph_spec: GraphSpec, random: Sequence[bool]) -> ReferenceCall:
    tensors = [tensor for _, tensor in tensors_with_locators(run.output)]
    specs = graph_spec.output_spec.tensor_specs
    batches: list[tuple[int, int] | None] = [None] * len(tensors)
    if len(specs) == len(tensors):
        batches = [batch_axis_of(spec.axes) for spec in specs]
    is_random = list(random) if len(random) == len(tensors) else [any(random)] * len(tensors)
    expectations = tuple(
        Expectation(
            batch_axis=None if batch is None else batch[0],
            batch_factor=1 if batch is None else batch[1],
            is_random=flag,
        )
        for batch, flag in zip(batches, is_random, strict=True)
    )
    label = run.label
    return ReferenceCall(
        label.where, label.call, run.output, expectations, run.inputs_after, run.shares_input, label.is_recorded
    )


def _state_sequence(module: torch.nn.Module, call: ReferenceCall, seed: int) -> tuple[Any, ...]:
    """Make the first call several times without putting the state back; empty when the answers are the same."""
    outputs = []
    with preserved_state(module), torch.no_grad():
        for _ in range(NUM_REPEATS):
            torch.manual_seed(seed)
            cloned = clone_tensors(call.call)
            outputs.append(clone_tensors(module(*cloned.args, **cloned.kwargs)))
    agree = all(compare_outputs(call.output, out, call.expectations).rejection is None for out in outputs)
    return () if agree else tuple(outputs)


def _with_float64(
    module: torch.nn.Module, calls: Sequence[ReferenceCall], seed: int, max_parameters: int
) -> tuple[list[ReferenceCall], str | None]:
    """Add what is known about sizes, noise and exact values, where all calls return the same number of tensors."""
    eager = [EagerCall(c.call, tuple(t for _, t in tensors_with_locators(c.output)), c.expectations) for c in calls]
    if len({len(call.outputs) for call in eager}) > 1:
        return list(calls), "no float64 run: the number of output tensors differs from call to call"
    refined, note = refine_expectations(module, eager, seed=seed, max_parameters=max_parameters)
    return [replace(call, expectations=found) for call, found in zip(calls, refined, strict=True)], note


# -- rows of a batch -----------------------------------------------------------------------------------------------


def _single_rows(
    module: torch.nn.Module, graph_spec: GraphSpec, calls: Sequence[ReferenceCall], seed: int
) -> tuple[tuple[SingleRow, ...], str | None]:
    """Pick rows that a candidate must answer alone as it does in a batch, where the original does so."""
    symbol = graph_spec.batch_symbol
    if symbol is None or symbol.min > 1:
        return (), None
    sizes = [graph_spec.batch_size_of(call.call) for call in calls]
    batched = [number for number, size in enumerate(sizes) if size > 1]
    has_rows = any(e.batch_axis is not None and not e.is_random for call in calls for e in call.expectations)
    if not batched or not has_rows:
        return (), None
    number = min(batched, key=lambda candidate: sizes[candidate])
    rows = tuple(
        SingleRow(calls[number].where, row, _cut_row(graph_spec, calls[number].call, row))
        for row in sorted({0, sizes[number] - 1})
    )
    for row in rows:
        try:
            alone = _run(module, graph_spec, LabelledCall(calls[number].where, row.call, False), seed).output
        except AITuneUserInputError:
            raise
        except Exception as error:
            return (), f"row independence is not checked: the original fails on a single row ({type(error).__name__})"
        if compare_row(calls[number], calls[number].output, alone, row.row).rejection is not None:
            return (), "row independence is not checked: rows of a batch influence each other in the original"
    return rows, None


def _cut_row(graph_spec: GraphSpec, call: Sample, row: int) -> Sample:
    tensors = []
    for tensor, spec in zip(graph_spec.input_tensors(*call), graph_spec.input_spec.tensor_specs, strict=True):
        batch = batch_axis_of(spec.axes)
        tensors.append(tensor if batch is None else tensor.narrow(batch[0], row * batch[1], batch[1]).clone())
    return graph_spec.make_call(tensors)


def compare_row(
    reference: ReferenceCall, batched: Any, alone: Any, row: int, budget: AccuracyBudget | None = None
) -> Comparison:
    """Compare a row of a batched output with the output of that row alone.

    Both carry their own rounding, so twice the usual error is allowed.

    Args:
        reference: The batched call.
        batched: What a callable returned for it.
        alone: What the same callable returned for the row alone.
        row: Which row.
        budget: Limits of the user in place of those of rounding.
    """
    expected: list[torch.Tensor] = []
    got: list[torch.Tensor] = []
    expectations: list[Expectation] = []
    for (_, whole), (_, single), known in zip(
        tensors_with_locators(batched), tensors_with_locators(alone), reference.expectations, strict=True
    ):
        if known.batch_axis is None or known.is_random:
            continue
        expected.append(whole.narrow(known.batch_axis, row * known.batch_factor, known.batch_factor))
        got.append(single)
        tolerance = known.tolerance or tolerance_for(whole.dtype)
        expectations.append(_doubled(known, tolerance, row))
    return compare_outputs(expected, got, expectations, where=f"{reference.where}, row {row} alone", budget=budget)


def _doubled(known: Expectation, tolerance: Tolerance | None, row: int) -> Expectation:
    if tolerance is not None:
        tolerance = replace(tolerance, floor=2 * tolerance.floor, noise_factor=2 * tolerance.noise_factor)
    axis, factor = known.batch_axis, known.batch_factor
    assert axis is not None
    other = tuple(values.narrow(axis, row * factor, factor) for values in known.alternatives)
    return replace(known, tolerance=tolerance, exact=None, alternatives=other)
