"""Calls with values unlike the recorded ones: NaN, infinities, floats far outside, ids beyond their table."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from aitune.torch.module.graph_spec import GraphSpec
from aitune.torch.module.locator import format_locator
from aitune.torch.module.sample import Sample
from aitune.torch.task.accuracy_budget import AccuracyBudget
from aitune.torch.task.comparison import Expectation, as_real_float64, compare_outputs
from aitune.torch.task.corner_inputs import LabelledCall
from aitune.torch.task.original_run import OriginalRun, run_original
from aitune.torch.task.outcome import Rejection
from aitune.torch.task.reference_call import Probe, ReferenceCall
from aitune.torch.task.row_independence import cut_row
from aitune.torch.task.structure import tensors_with_locators
from aitune.torch.task.tied_order import sorted_dim
from aitune.torch.task.tolerance import tolerance_for
from aitune.utils.error_text import error_line

_EXCEPTIONAL = {"NaN": float("nan"), "+inf": float("inf"), "-inf": float("-inf")}

_BATCHED = ", in a batch of two"

# What is made of all values at once: beyond what was recorded, and what no sample is made of alone.
_UNUSUAL: Mapping[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "ten times the values, negated,": lambda tensor: (as_real_float64(tensor) * -10).to(tensor.dtype),
    "zeros": torch.zeros_like,
}

# Far from the recorded values rounding grows in ways that nothing was measured of.
_LENIENCE = 100.0

# Input tensors that index a table and are probed; each of them costs two runs.
_MOST_TABLES = 2

# A loop that waits for a value to become small never ends with NaN: a probe may take this many times the operations.
_PATIENCE = 4
_FREE_OPERATIONS = 1000


def make_probes(
    module: torch.nn.Module, graph_spec: GraphSpec, calls: Sequence[ReferenceCall], seed: int
) -> tuple[Probe, ...]:
    """Run the original on the smallest recorded call with exceptional values written into it.

    Nothing of it is an error: where the original raises on NaN or takes too long, that probe is left out. On other
    devices than the CPU nothing is probed, as an index out of range ends a whole CUDA context there.

    Args:
        module: The original module.
        graph_spec: The graph.
        calls: The calls with the original's outputs.
        seed: Seed of torch's random generators.
    """
    base = _smallest(graph_spec, [call for call in calls if call.is_recorded])
    if base is None or any(tensor.device.type != "cpu" for tensor in graph_spec.input_tensors(*base.call)):
        return ()
    watch = _Watch()
    if _run(module, graph_spec, LabelledCall(base.where, base.call, False, False), seed, watch) is None:
        return ()
    changes = {**_floating_changes(graph_spec, base.call), **_table_changes(graph_spec, base.call, watch.tables)}
    pair = _two_rows(graph_spec, [call for call in calls if call.is_recorded])
    batched = {} if pair is None else _batched_changes(graph_spec, pair.call)
    probes = []
    for where, (call, is_index) in {**changes, **batched}.items():
        label = LabelledCall(where, call, False, False)
        found = _run(module, graph_spec, label, seed, _Watch(_PATIENCE * watch.count + _FREE_OPERATIONS))
        # An original that refuses a NaN is right to do so, and so is a candidate that answers; an id is another matter.
        if found is None or (isinstance(found, str) and not is_index):
            continue
        refusal, output = (found, None) if isinstance(found, str) else (None, found.output)
        known = () if output is None else _lenient(base, output, watch.sorts)
        if known is not None:
            alone = where.removesuffix(_BATCHED) if where in batched else None
            probes.append(Probe(where, call, output, known, refusal, is_index, alone))
    return tuple(probes)


def compare_probes(
    run: Callable[[Sample], Any], probes: Sequence[Probe], budget: AccuracyBudget | None
) -> list[Rejection]:
    """Return where a candidate does otherwise than the original with exceptional values.

    Args:
        run: Runs a copy of a call on the candidate and returns the output.
        probes: The calls.
        budget: Limits of the user in place of those of rounding.
    """
    found: list[Rejection] = []
    for probe in probes:
        if probe.alone is not None and any(rejection.where == probe.alone for rejection in found):
            continue
        try:
            output = run(probe.call)
        except Exception as error:
            if probe.refusal is None:
                found.append(Rejection("raised", "output", None, error_line(error), "an answer", "none", probe.where))
            continue
        if probe.refusal is not None:
            found.append(Rejection("refused", "output", None, "an answer", probe.refusal, "none", probe.where))
            continue
        difference = compare_outputs(
            probe.output, output, probe.expectations, where=probe.where, budget=budget
        ).rejection
        if difference is not None:
            found.append(difference)
    return found


def _lenient(base: ReferenceCall, output: Any, sorts: bool) -> tuple[Expectation, ...] | None:
    """Return what is known about the tensors of a probe's output; nothing where there are others than usual."""
    tensors = [tensor for _, tensor in tensors_with_locators(output)]
    if len(tensors) != len(base.expectations):
        return None
    lenient = []
    for tensor, known in zip(tensors, base.expectations, strict=True):
        tolerance = known.tolerance or tolerance_for(tensor.dtype)
        if tolerance is not None:
            tolerance = replace(tolerance, floor=_LENIENCE * tolerance.floor)
        # Equal values are likely here, and their order is open.
        is_open = known.is_random or (sorts and tolerance is None)
        plain = replace(known, exact=None, alternatives=(), rounded=None, tied=None, is_random=is_open)
        lenient.append(replace(plain, scale=None, tolerance=tolerance))
    return tuple(lenient)


def _smallest(graph_spec: GraphSpec, calls: Sequence[ReferenceCall]) -> ReferenceCall | None:
    """Return the recorded call with the fewest elements, cut to one row where that is a call of the graph."""

    def size(call: ReferenceCall) -> int:
        return sum(tensor.numel() for tensor in graph_spec.input_tensors(*call.call))

    filled = [call for call in calls if size(call) and call.expectations]
    if not filled:
        return None
    smallest = min(filled, key=size)
    symbol = graph_spec.batch_symbol
    if symbol is not None and symbol.min <= 1 < graph_spec.batch_size_of(smallest.call):
        return replace(smallest, call=cut_row(graph_spec, smallest.call, 0))
    return smallest


def _two_rows(graph_spec: GraphSpec, calls: Sequence[ReferenceCall]) -> ReferenceCall | None:
    """Return two rows of a recorded call where one row alone is a call as well.

    Kernels for one row are others than those for many: Inductor's ``relu`` keeps a NaN in the one and not in the other.
    """
    symbol = graph_spec.batch_symbol
    if symbol is None or symbol.min > 1:
        return None
    batched = [call for call in calls if call.expectations and graph_spec.batch_size_of(call.call) >= 2]
    if not batched:
        return None
    smallest = min(batched, key=lambda call: graph_spec.batch_size_of(call.call))
    return replace(smallest, call=cut_row(graph_spec, smallest.call, 0, 2))


def _batched_changes(graph_spec: GraphSpec, call: Sample) -> dict[str, tuple[Sample, bool]]:
    """Write NaN and infinities into two rows."""
    changes = _floating_changes(graph_spec, call)
    return {f"{where}{_BATCHED}": change for where, change in changes.items() if where.startswith(tuple(_EXCEPTIONAL))}


def _floating_changes(graph_spec: GraphSpec, call: Sample) -> dict[str, tuple[Sample, bool]]:
    """Write each exceptional value into the middle of every input of data; masks of two values are left alone."""
    tensors = graph_spec.input_tensors(*call)
    floating = [n for n, tensor in enumerate(tensors) if tensor.is_floating_point() and tensor.numel()]
    positions = [n for n in floating if _has_more_than_two_values(tensors[n])] or floating
    if not positions:
        return {}
    names = ", ".join(_name(graph_spec, n) for n in positions)
    changes = {
        f"{name} in {names}": (_with_value(graph_spec, tensors, positions, value), False)
        for name, value in _EXCEPTIONAL.items()
    }
    for name, change in _UNUSUAL.items():
        changed = [change(tensor) if n in positions else tensor for n, tensor in enumerate(tensors)]
        changes[f"{name} in {names}"] = (graph_spec.make_call(changed), False)
    return changes


def _has_more_than_two_values(tensor: torch.Tensor) -> bool:
    flat = as_real_float64(tensor)
    return bool(((flat != flat.min()) & (flat != flat.max())).any())


def _table_changes(
    graph_spec: GraphSpec, call: Sample, tables: Sequence[tuple[torch.Tensor, int]]
) -> dict[str, tuple[Sample, bool]]:
    """Write the first id after the table, and -1, into every input that the original looks up in a table."""
    tensors = graph_spec.input_tensors(*call)
    changes: dict[str, tuple[Sample, bool]] = {}
    for position, tensor in enumerate(tensors):
        sizes = [rows for index, rows in tables if _is_same_index(index, tensor)]
        if not sizes or len(changes) == 2 * _MOST_TABLES:
            continue
        for value in (max(sizes), -1):
            if value <= torch.iinfo(tensor.dtype).max and (value >= 0 or tensor.dtype.is_signed):
                where = f"{value} in {_name(graph_spec, position)}, which indexes {max(sizes)} rows"
                changes[where] = (_with_value(graph_spec, tensors, [position], value), True)
    return changes


def _name(graph_spec: GraphSpec, position: int) -> str:
    return format_locator(graph_spec.input_spec.tensor_specs[position].locator, "input")


def _is_same_index(index: torch.Tensor, tensor: torch.Tensor) -> bool:
    if tensor.is_floating_point() or tensor.is_complex() or tensor.dtype is torch.bool or not tensor.numel():
        return False
    return index.numel() == tensor.numel() and torch.equal(index.reshape(-1).long(), tensor.reshape(-1).long())


def _with_value(
    graph_spec: GraphSpec, tensors: Sequence[torch.Tensor], positions: Sequence[int], value: float
) -> Sample:
    changed = list(tensors)
    for position in positions:
        changed[position] = tensors[position].clone(memory_format=torch.contiguous_format)
        flat = changed[position].view(-1)
        flat[flat.numel() // 2] = value
    return graph_spec.make_call(changed)


def _run(
    module: torch.nn.Module, graph_spec: GraphSpec, label: LabelledCall, seed: int, watch: _Watch
) -> OriginalRun | str | None:
    """Return what the original did, what it raised as a text, or nothing where it cannot be told."""
    try:
        with watch:
            return run_original(module, graph_spec, label, seed)
    except _TooLongError:
        return None
    except Exception as error:
        return error_line(error)


class _TooLongError(Exception):
    """The original takes many more operations than it did with ordinary values."""


class _Watch(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the operations of a run, and remembers which indices were looked up in tables of how many rows."""

    def __init__(self, most: int | None = None) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.count = 0
        self.sorts = False
        self.tables: list[tuple[torch.Tensor, int]] = []
        self._most = most

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        self.count += 1
        if self._most is not None and self.count > self._most:
            raise _TooLongError(f"more than {self._most} operations")
        if self._most is None:
            self.tables += _lookups(func, args)
            self.sorts = self.sorts or sorted_dim(func, args, kwargs or {}) is not None
        return func(*args, **(kwargs or {}))


def _lookups(func: Any, args: tuple[Any, ...]) -> list[tuple[torch.Tensor, int]]:
    aten = torch.ops.aten
    if func is aten.embedding.default:
        return [(args[1].clone(), args[0].shape[0])]
    if func is aten.index_select.default:
        return [(args[2].clone(), args[0].shape[args[1]])]
    if func is aten.index.Tensor:
        indices = [(n, index) for n, index in enumerate(args[1]) if index is not None and index.dtype is not torch.bool]
        return [(index.clone(), args[0].shape[n]) for n, index in indices]
    return []
