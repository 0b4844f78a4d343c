"""What the original module answers, how much it rounds, and how it behaves: made once, compared with many times."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import torch

from aitune.exceptions import AITuneUserInputError
from aitune.torch.config import config
from aitune.torch.module.graph_spec import GraphSpec
from aitune.torch.module.locator import format_locator
from aitune.torch.module.preserved_state import preserved_state
from aitune.torch.module.sample import Sample
from aitune.torch.task.comparison import Expectation, batch_axis_of, compare_outputs
from aitune.torch.task.corner_inputs import DEFAULT_MAX_CORNERS, LabelledCall, labelled_calls
from aitune.torch.task.float64_reference import EagerCall, refine_expectations
from aitune.torch.task.float64_run import DEFAULT_MAX_FLOAT64_PARAMETERS
from aitune.torch.task.input_factory import InputFactory
from aitune.torch.task.original_run import OriginalRun, run_original, same_values
from aitune.torch.task.probes import make_probes
from aitune.torch.task.reference_call import ReferenceCall, References
from aitune.torch.task.row_independence import single_rows
from aitune.torch.task.structure import clone_tensors, tensors_with_locators
from aitune.torch.task.tied_order import with_tied_elements
from aitune.utils.error_text import error_line

__all__ = ["NUM_REPEATS", "ReferenceCall", "References", "make_references"]

# Calls in a row that must give the same answer: some backends fail only on the second or third.
NUM_REPEATS = 3


def make_references(
    module: torch.nn.Module,
    graph_spec: GraphSpec,
    data: Sequence[Sample],
    *,
    seed: int = 0,
    max_corners: int = DEFAULT_MAX_CORNERS,
    max_float64_parameters: int = DEFAULT_MAX_FLOAT64_PARAMETERS,
    input_factory: InputFactory | None = None,
) -> References:
    """Run the original module on the recorded calls, at the corners of the range, and at points inside it.

    The module's state is as before when this returns, and the calls are not changed.

    Args:
        module: The original module, in the mode that it will be used in.
        graph_spec: The graph.
        data: Recorded calls of the graph, at least one.
        seed: Seed of made-up inputs and of the random generators.
        max_corners: Most corners.
        max_float64_parameters: Above this many parameters no float64 copy is made (8 bytes each).
        input_factory: Makes the calls of wanted sizes, instead of making them up from the recorded ones.

    Raises:
        AITuneUserInputError: There is no recorded call, the module fails on one or on one of the factory's, the factory
            makes none that fits, or the module changes its parameters.
    """
    began = time.perf_counter()
    labels = labelled_calls(graph_spec, data, seed=seed, max_corners=max_corners, input_factory=input_factory)
    runs, notes = _run_all(module, graph_spec, labels, seed)
    random = _random_outputs(module, graph_spec, runs[0], seed)
    if any(random):
        names = [place for place, is_random in zip(_places(runs[0].output), random, strict=True) if is_random]
        which = "" if all(random) else f" (in {', '.join(names)})"
        notes.append(f"forward is random{which}")
    calls = [_with_expectations(run, graph_spec, random) for run in runs]
    calls, float64_note = _with_float64(module, calls, seed, max_float64_parameters)
    calls, tied_note = with_tied_elements(module, graph_spec, calls, seed)
    sequence = () if all(random) else _state_sequence(module, calls[0], seed)
    rows, row_note = single_rows(module, graph_spec, calls, seed)
    notes.extend(note for note in (float64_note, tied_note, row_note) if note)
    probes = make_probes(module, graph_spec, calls, seed)
    seconds = time.perf_counter() - began
    rejects = config.on_exceptional_values == "reject"
    changed = {name for call in calls for name in call.buffers_after}
    before = {name: buffer.detach().clone() for name, buffer in module.named_buffers() if name in changed}
    return References(graph_spec, tuple(calls), rows, sequence, tuple(notes), seed, seconds, probes, rejects, before)


def _places(output: Any) -> list[str]:
    return [format_locator(locator) for locator, _ in tensors_with_locators(output)]


def _run_all(
    module: torch.nn.Module, graph_spec: GraphSpec, labels: Iterable[LabelledCall], seed: int
) -> tuple[list[OriginalRun], list[str]]:
    runs: list[OriginalRun] = []
    refused: dict[str, list[tuple[str, str]]] = {}
    for label in labels:
        try:
            runs.append(run_original(module, graph_spec, label, seed))
        except AITuneUserInputError:
            raise
        except Exception as error:
            text = error_line(error)
            if label.is_valid:
                data = "recorded data" if label.is_recorded else "calls that input_factory makes"
                raise AITuneUserInputError(
                    f"the original {type(module).__name__} fails on {label.where}: {text}; it must run on the {data} "
                    f"before anything can be compared with it"
                ) from error
            refused.setdefault(_kind_of(text), []).append((label.where, text))
    notes = [_refusal_note(alike) for alike in refused.values()]
    changed = sorted({name for run in runs for name in run.buffers_after})
    if changed:
        notes.append(f"the forward changes the buffer {', '.join(changed)}")
    return runs, notes


def _kind_of(text: str) -> str:
    """Return a message without its numbers: sizes differ from call to call, what is wrong does not."""
    return re.sub(r"[0-9]+", "#", text)


def _refusal_note(alike: Sequence[tuple[str, str]]) -> str:
    where, text = alike[0]
    if len(alike) == 1:
        return f"{where} was not compared: the original does not run on it ({text})"
    return (
        f"{len(alike)} made-up calls were not compared: the original does not run on them (the first, {where}: {text})"
    )


def _random_outputs(module: torch.nn.Module, graph_spec: GraphSpec, run: OriginalRun, seed: int) -> list[bool]:
    """Run once more under another seed: an output that is not the same, up to rounding, is random."""
    other = run_original(module, graph_spec, run.label, seed + 1)
    pairs = zip(tensors_with_locators(run.output), tensors_with_locators(other.output), strict=False)
    random = [
        not same_values(first, second) and compare_outputs(first, second).rejection is not None
        for (_, first), (_, second) in pairs
    ]
    # An output of another length can only be random as a whole.
    num_outputs = len(tensors_with_locators(run.output))
    return random if len(tensors_with_locators(other.output)) == num_outputs else [True] * num_outputs


def _with_expectations(run: OriginalRun, graph_spec: GraphSpec, random: Sequence[bool]) -> ReferenceCall:
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
        label.where, label.call, run.output, expectations, run.inputs_after, run.shares_input, label.is_recorded,
        run.buffers_after,
    )  # fmt: skip


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
