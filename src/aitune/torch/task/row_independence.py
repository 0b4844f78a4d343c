"""Rows of a batch as calls of their own: they must not depend on each other where they do not in the original."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from aitune.exceptions import AITuneUserInputError
from aitune.torch.module.graph_spec import GraphSpec
from aitune.torch.module.sample import Sample
from aitune.torch.task.accuracy_budget import AccuracyBudget
from aitune.torch.task.comparison import Comparison, Expectation, batch_axis_of, compare_outputs
from aitune.torch.task.corner_inputs import LabelledCall
from aitune.torch.task.original_run import run_original
from aitune.torch.task.reference_call import ReferenceCall, SingleRow
from aitune.torch.task.structure import tensors_with_locators
from aitune.torch.task.tolerance import Tolerance, tolerance_for


def single_rows(
    module: torch.nn.Module, graph_spec: GraphSpec, calls: Sequence[ReferenceCall], seed: int
) -> tuple[tuple[SingleRow, ...], str | None]:
    """Pick rows that a candidate must answer alone as it does in a batch, where the original does so.

    Args:
        module: The original module.
        graph_spec: The graph.
        calls: The calls with the original's outputs.
        seed: Seed of torch's random generators.

    Returns:
        The rows, and why there are none where the original's own rows cannot be told apart.

    Raises:
        AITuneUserInputError: The module changes its parameters.
    """
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
        SingleRow(calls[number].where, row, cut_row(graph_spec, calls[number].call, row))
        for row in sorted({0, sizes[number] - 1})
    )
    for row in rows:
        try:
            alone = run_original(module, graph_spec, LabelledCall(row.where, row.call, False, False), seed).output
        except AITuneUserInputError:
            raise
        except Exception as error:
            return (), f"row independence is not checked: the original fails on a single row ({type(error).__name__})"
        if compare_row(calls[number], calls[number].output, alone, row.row).rejection is not None:
            return (), "row independence is not checked: rows of a batch influence each other in the original"
    return rows, None


def cut_row(graph_spec: GraphSpec, call: Sample, row: int, count: int = 1) -> Sample:
    """Return one row of a batched call, or some that follow each other, as a call of its own.

    Args:
        graph_spec: The graph.
        call: The batched call.
        row: Which row.
        count: How many rows.
    """
    tensors = []
    for tensor, spec in zip(graph_spec.input_tensors(*call), graph_spec.input_spec.tensor_specs, strict=True):
        batch = batch_axis_of(spec.axes)
        tensors.append(tensor if batch is None else tensor.narrow(batch[0], row * batch[1], count * batch[1]).clone())
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

    def of_the_row(values: torch.Tensor) -> torch.Tensor:
        return values.narrow(axis, row * factor, factor)

    rounded = known.rounded
    return replace(
        known,
        tolerance=tolerance,
        exact=None,
        alternatives=tuple(map(of_the_row, known.alternatives)),
        rounded=None if rounded is None else lambda: tuple(map(of_the_row, rounded())),
        tied=None if known.tied is None else of_the_row(known.tied),
    )
