"""Integers that hang on the order of equal values: ``topk`` and ``sort`` promise none, so every order is right."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from aitune.torch.module.graph_spec import GraphSpec
from aitune.torch.task.comparison import Expectation
from aitune.torch.task.corner_inputs import LabelledCall
from aitune.torch.task.original_run import run_original
from aitune.torch.task.reference_call import ReferenceCall
from aitune.torch.task.structure import tensors_with_locators

_NUM_ORDERS = 6


def with_tied_elements(
    module: torch.nn.Module, graph_spec: GraphSpec, calls: Sequence[ReferenceCall], seed: int
) -> tuple[list[ReferenceCall], str | None]:
    """Mark the integers that change when equal values are put in another order before they are sorted.

    Args:
        module: The original module.
        graph_spec: The graph.
        calls: The calls with the original's outputs.
        seed: Seed of torch's random generators, and of the orders.

    Returns:
        The calls, and what a user should know where there are such integers.
    """
    dtypes = {tensor.dtype for _, tensor in tensors_with_locators(calls[0].output)}
    if all(dtype.is_floating_point or dtype.is_complex for dtype in dtypes):
        return list(calls), None
    marked = []
    for call in calls:
        label = LabelledCall(call.where, call.call, False, False)
        outputs = []
        for number in range(_NUM_ORDERS):
            shuffled = _ShuffledTies(seed + number)
            try:
                with shuffled:
                    output = run_original(module, graph_spec, label, seed).output
            except Exception:
                # It runs without such a mode: then nothing is known about ties.
                return list(calls), None
            if not shuffled.is_used:
                return list(calls), None
            outputs.append([tensor for _, tensor in tensors_with_locators(output)])
        marked.append(replace(call, expectations=_marked(call, outputs)))
    num_tied = sum(int(known.tied.sum()) for call in marked for known in call.expectations if known.tied is not None)
    note = (
        f"{num_tied} integers hang on the order of equal values, which sort and topk leave open" if num_tied else None
    )
    return marked, note


def _marked(call: ReferenceCall, others: Sequence[Sequence[torch.Tensor]]) -> tuple[Expectation, ...]:
    expectations = list(call.expectations)
    for number, (_, tensor) in enumerate(tensors_with_locators(call.output)):
        seen = [outputs[number] for outputs in others if len(outputs) == len(call.expectations)]
        is_integer = not (tensor.is_floating_point() or tensor.is_complex())
        if is_integer and seen and all(other.shape == tensor.shape for other in seen):
            tied = torch.stack([other != tensor for other in seen]).any(dim=0)
            if tied.any():
                known = expectations[number]
                expectations[number] = replace(known, tied=tied, alternatives=(*known.alternatives, *seen))
    return tuple(expectations)


class _ShuffledTies(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Sorts values that were put in a random order first, and gives the indices of the values where they were."""

    def __init__(self, seed: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.is_used = False
        self._generator = torch.Generator().manual_seed(seed)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        dim = sorted_dim(func, args, kwargs)
        if dim is None or args[0].dim() == 0:
            return func(*args, **kwargs)
        self.is_used = True
        order = torch.randperm(args[0].shape[dim], generator=self._generator).to(args[0].device)
        values, indices = func(args[0].index_select(dim, order), *args[1:], **kwargs)
        return values, order[indices]


def sorted_dim(func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> int | None:
    """Return the axis that an operation sorts along without a promise for equal values.

    Args:
        func: An operator.
        args: What it is called with.
        kwargs: What it is called with by name.
    """
    aten = torch.ops.aten
    if func is aten.topk.default:
        return int(args[2] if len(args) > 2 else kwargs.get("dim", -1))
    if func is aten.sort.default:
        return int(args[1] if len(args) > 1 else kwargs.get("dim", -1))
    if func is aten.sort.stable and not kwargs.get("stable"):
        return int(args[1] if len(args) > 1 else kwargs.get("dim", -1))
    return None
