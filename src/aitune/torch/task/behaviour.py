"""What a candidate does beside answering: to its inputs, to earlier outputs, to the state of the module."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from aitune.torch.module.graph_spec import GraphSpec
from aitune.torch.module.locator import format_locator
from aitune.torch.module.sample import Sample
from aitune.torch.task.accuracy_budget import AccuracyBudget
from aitune.torch.task.comparison import as_real_float64, compare_outputs
from aitune.torch.task.original_run import same_values, shares_memory
from aitune.torch.task.outcome import Rejection
from aitune.torch.task.reference_call import ReferenceCall
from aitune.torch.task.structure import tensors_with_locators


def find_overwritten(reference: ReferenceCall, output: Any, snapshot: Any, next_where: str) -> Rejection | None:
    """See whether the output of one call still is what it was when the next call was made.

    Args:
        reference: The call.
        output: What the candidate returned for it.
        snapshot: A copy that was made at once.
        next_where: Name of the next call.
    """
    for (locator, now), (_, then) in zip(tensors_with_locators(output), tensors_with_locators(snapshot), strict=True):
        if not same_values(now, then):
            index = _first_difference(now, then)
            got, expected = _at(now, index), _at(then, index)
            return Rejection(
                "aliasing", format_locator(locator), index, f"{got} after the next call ({next_where})", expected,
                "an output of its own for every call", reference.where,
            )  # fmt: skip
    return None


def find_modified_input(reference: ReferenceCall, call: Sample, graph_spec: GraphSpec) -> Rejection | None:
    """See whether the inputs are as the original leaves them.

    Args:
        reference: The call.
        call: What the candidate was given, afterwards.
        graph_spec: The graph.
    """
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


def find_shared_input(reference: ReferenceCall, output: Any, call: Sample) -> Rejection | None:
    """See whether an output is a view of an input where the original's is not: changing one would change the other.

    Args:
        reference: The call.
        output: What the candidate returned.
        call: What the candidate was given.
    """
    inputs = [tensor for _, tensor in tensors_with_locators(call)]
    outputs = tensors_with_locators(output)
    for (locator, tensor), may_share in zip(outputs, reference.shares_input, strict=True):
        if not may_share and shares_memory(tensor, inputs):
            place = format_locator(locator)
            expected = "memory of its own"
            return Rejection("aliasing", place, None, "the memory of an input", expected, "none", reference.where)
    return None


def find_changed_state(
    reference: ReferenceCall, buffers_after: Mapping[str, torch.Tensor], budget: AccuracyBudget | None
) -> Rejection | None:
    """See whether the module's buffers are as the original leaves them.

    Args:
        reference: The call.
        buffers_after: The buffers that the candidate changed, as it left them.
        budget: Limits of the user in place of those of rounding.
    """
    for name, expected in reference.buffers_after.items():
        if name not in buffers_after:
            return Rejection("state", name, None, "as it was", "changed", "as the original leaves it", reference.where)
        found = compare_outputs([expected], [buffers_after[name]], where=reference.where, budget=budget).rejection
        if found is not None:
            return Rejection("state", name, found.index, found.got, found.expected, found.allowed, reference.where)
    extra = next((name for name in buffers_after if name not in reference.buffers_after), None)
    if extra is not None:
        return Rejection("state", extra, None, "changed", "as it was", "as the original leaves it", reference.where)
    return None


def global_settings() -> dict[str, str]:
    """Return settings of the whole process that a call has to leave as they are."""
    return {
        "grad mode": str(torch.is_grad_enabled()),
        "inference mode": str(torch.is_inference_mode_enabled()),
        "default dtype": str(torch.get_default_dtype()),
        "number of threads": str(torch.get_num_threads()),
        "deterministic algorithms": str(torch.are_deterministic_algorithms_enabled()),
    }


def find_changed_setting(before: Mapping[str, str], where: str) -> Rejection | None:
    """See whether settings of the whole process are as they were before a call.

    Args:
        before: What :func:`global_settings` returned before the call.
        where: Name of the call.
    """
    for name, now in global_settings().items():
        if now != before[name]:
            return Rejection("global state", name, None, now, before[name], "as it was", where)
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
