"""A graph of a module as a module of its own: flat tensors in, a flat tuple of tensors out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.utils import _pytree as pytree

from aitune.exceptions import ExportError
from aitune.torch.module.graph_spec import GraphSpec
from aitune.torch.module.locator import format_locator
from aitune.torch.module.sample_metadata import Constant


class FlatModule(torch.nn.Module):
    """Calls a module with the flat list of a graph's input tensors and returns the flat tuple of its output tensors.

    Constants and nesting of the arguments are as they were recorded. Parameters are the module's own, not copies.

    Args:
        module: The module.
        graph_spec: The graph.
    """

    def __init__(self, module: torch.nn.Module, graph_spec: GraphSpec) -> None:
        super().__init__()
        self.module = module
        self._graph_spec = graph_spec
        # Not .eval(), which would reach into the module.
        self.training = False

    def forward(self, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Run the graph.

        Args:
            tensors: The input tensors in the order of the graph's input spec.

        Raises:
            ExportError: The output is not what was recorded, so that its tensors alone do not describe it.
        """
        args, kwargs = self._graph_spec.make_call(tensors)
        return self._output_tensors(self.module(*args, **kwargs))

    def _output_tensors(self, output: Any) -> tuple[torch.Tensor, ...]:
        expected = self._graph_spec.output_spec.leaves
        leaves = pytree.tree_leaves(output)
        if len(leaves) != len(expected):
            raise ExportError(
                f"the forward returned {len(leaves)} values where {len(expected)} were recorded; its output depends on "
                f"the values or sizes of its inputs, which a graph built ahead of time cannot follow",
                graph=self._graph_spec.name,
            )
        for leaf, recorded in zip(leaves, expected, strict=True):
            if isinstance(recorded, Constant):
                self._require_same(leaf, recorded)
        return tuple(leaf for leaf in leaves if isinstance(leaf, torch.Tensor))

    def _require_same(self, leaf: Any, recorded: Constant) -> None:
        where = format_locator(recorded.locator)
        if isinstance(leaf, torch.SymInt | torch.SymFloat | torch.SymBool):
            raise ExportError(
                f"{where} is a number computed from the sizes of the inputs (recorded as {recorded.value!r}); a graph "
                f"built ahead of time would always return {recorded.value!r}",
                graph=self._graph_spec.name,
            )
        if Constant(recorded.locator, leaf).key != recorded.key:
            raise ExportError(
                f"{where} was recorded as {recorded.value!r} and is {leaf!r} now; a graph built ahead of time would "
                f"always return {recorded.value!r}",
                graph=self._graph_spec.name,
            )


def refused_tensors(
    module: torch.nn.Module, graph_spec: GraphSpec, dtypes: frozenset[torch.dtype] | None = None
) -> str | None:
    """Say why a backend that runs on flat, dense tensors cannot run a graph; ``None`` when it can be tried.

    Args:
        module: The module.
        graph_spec: The graph.
        dtypes: Element types that the backend computes right; ``None`` allows all that are neither complex nor
            quantised.
    """
    if not graph_spec.input_spec.tensor_specs:
        return "the call has no tensor argument"
    if not graph_spec.output_spec.tensor_specs:
        return "the output holds no tensor"
    for spec in (*graph_spec.input_spec.tensor_specs, *graph_spec.output_spec.tensor_specs):
        if reason := _refused_dtype(spec.dtype, dtypes):
            return f"{format_locator(spec.locator)} {reason}"
    named: Sequence[tuple[str, torch.Tensor]] = [*module.named_parameters(), *module.named_buffers()]
    for name, tensor in named:
        if reason := _refused_weight(tensor, dtypes):
            return f"weight {name} {reason}"
    return None


_PLAIN_TYPES = (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)


def _refused_weight(tensor: torch.Tensor, dtypes: frozenset[torch.dtype] | None) -> str | None:
    if tensor.layout is not torch.strided:
        return f"is sparse ({tensor.layout})"
    if type(tensor.data) not in _PLAIN_TYPES:
        return f"is a {type(tensor.data).__name__}, which is not a plain tensor"
    if tensor.is_meta:
        return "has no values (it is on the meta device)"
    return _refused_dtype(tensor.dtype, dtypes)


def _refused_dtype(dtype: torch.dtype, dtypes: frozenset[torch.dtype] | None) -> str | None:
    name = str(dtype).removeprefix("torch.")
    if dtype.is_complex:
        return f"is complex ({name}), which is not supported"
    if name.startswith(("q", "bits")):
        return f"is quantised ({name}), which is not supported"
    if dtypes is not None and dtype not in dtypes:
        return f"is {name}, which is not computed exactly or not at all"
    return None
