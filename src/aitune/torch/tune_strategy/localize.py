"""Find the first operation of an exported graph in which a candidate differs from the original.

The graph is run side by side: the candidate builds it anew with some of its intermediate values as outputs, and each of
them is compared with the original's, by the same rules as an output. Between the last value that agrees and the first
one that does not the search goes on, with values that lie closer together.
"""

from __future__ import annotations

import operator
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from aitune.exceptions import AITuneError
from aitune.torch.backend.backend import Backend
from aitune.torch.backend.export import export_graph
from aitune.torch.module.forward_signature import ForwardSignature
from aitune.torch.module.graph_spec import GraphSpec
from aitune.torch.module.sample import Sample
from aitune.torch.module.sample_metadata import SampleMetadata
from aitune.torch.task.accuracy_budget import AccuracyBudget
from aitune.torch.task.comparison import compare_outputs
from aitune.torch.task.outcome import OutputAgreement
from aitune.torch.task.reference import make_references
from aitune.torch.task.structure import clone_tensors

# Intermediate values that one build hands out; more of them would keep the candidate from fusing anything.
_MOST_TAPS = 16


@dataclass(frozen=True)
class Divergence:
    """Where a candidate first differs from the original inside of a graph.

    Args:
        part: Path of the submodule, such as ``"encoder.layer.0.output"``; empty for the module itself.
        operation: The operation, such as ``"aten.gelu.default"``.
        relative_error: Relative L2 error of its result.
        allowed: Error that would have passed; ``None`` where nothing limits it.
        builds: How many times the candidate was built for the search.
        note: What else is known; where nothing was found, why.
    """

    part: str
    operation: str
    relative_error: float | None
    allowed: float | None
    builds: int
    note: str = ""

    @property
    def is_found(self) -> bool:
        """Whether an operation was found."""
        return bool(self.operation)

    def __str__(self) -> str:
        if not self.is_found:
            return self.note
        limit = "" if self.allowed is None else f", allowed {self.allowed:.3g}"
        text = (
            f"first differs in {self.part or 'the module itself'}, at {self.operation}: relative error "
            f"{self.relative_error:.3g}{limit}"
        )
        return f"{text}; {self.note}" if self.note else text


def first_divergence(
    backend: Backend,
    module: torch.nn.Module,
    call: Sample,
    *,
    budget: AccuracyBudget | None = None,
    max_builds: int = 6,
) -> Divergence:
    """Search the graph of one call for the first operation whose result a candidate gets wrong.

    Args:
        backend: The candidate's configuration; copies of it are built.
        module: The original module, in eval mode; it is not changed.
        call: A call that the candidate gets wrong.
        budget: Limits in place of those of rounding, for a candidate that gives precision away.
        max_builds: Most builds; the search ends with what it knows by then.

    Returns:
        The operation and its error, or why none was found.
    """
    graph_spec = _fixed_graph(module, call)
    try:
        program = export_graph(module, graph_spec, [call], backend.device).program
    except AITuneError as error:
        return _not_found(f"the graph cannot be taken apart: {error}", 0)
    tensors = [tensor.detach().clone() for tensor in graph_spec.input_tensors(*call)]
    search = _Search(backend, program, tensors, budget, max_builds)
    try:
        return search.run()
    except AITuneError as error:
        return _not_found(f"the candidate cannot be built with intermediate values as outputs: {error}", search.builds)


def _not_found(note: str, builds: int) -> Divergence:
    return Divergence("", "", None, None, builds, note)


def _fixed_graph(module: torch.nn.Module, call: Sample) -> GraphSpec:
    """Describe one call, with every axis fixed."""
    signature = ForwardSignature.from_callable(module.forward)
    named = signature.bind(call.args, call.kwargs)
    copied = clone_tensors(call)
    with torch.no_grad():
        output = module(*copied.args, **copied.kwargs)
    inputs = SampleMetadata.from_inputs(named, strict=True)
    return GraphSpec("part", inputs, SampleMetadata.from_outputs(output), signature)


class _Tapped(torch.nn.Module):
    """An exported graph that returns some of its intermediate values."""

    def __init__(self, graph_module: torch.fx.GraphModule) -> None:
        super().__init__()
        self.graph_module = graph_module
        self.training = False

    def forward(self, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Run the graph on its flat inputs."""
        values: tuple[torch.Tensor, ...] = self.graph_module(*tensors)
        return values


class _Search:
    """One search; counts the builds."""

    def __init__(
        self,
        backend: Backend,
        program: torch.export.ExportedProgram,
        tensors: Sequence[torch.Tensor],
        budget: AccuracyBudget | None,
        max_builds: int,
    ) -> None:
        self.builds = 0
        self._backend = backend
        self._graph_module = _plain_graph_module(program)
        self._nodes = [node for node in self._graph_module.graph.nodes if _can_be_tapped(node)]
        self._tensors = tensors
        self._budget = budget
        self._max_builds = max_builds

    def run(self) -> Divergence:
        """Narrow down from the whole graph to one operation."""
        low, high = -1, len(self._nodes) - 1  # the value at low agrees, the one at high does not
        found: tuple[int, OutputAgreement] | None = None
        note = ""
        while self.builds < self._max_builds:
            positions = _spread(low, high)
            try:
                wrong = self._first_wrong(positions)
            except AITuneError as error:
                if found is None:
                    raise
                note = f"for a smaller part the candidate cannot be built ({error})"
                break
            if wrong is None:
                break
            found, place = wrong, positions.index(wrong[0])
            low, high = (positions[place - 1] if place else low), wrong[0]
            if high - low <= 1:
                # Another branch of the graph may have gone wrong before; it was passed between two values.
                earlier = self._wrong_operand(high)
                if earlier is None:
                    return self._describe(found, "")
                found, low, high = earlier, -1, earlier[0]
        if found is None:
            return _not_found(
                "every intermediate value agrees when it is an output: the difference comes from operations that the "
                "candidate fuses only when nobody looks, or the call is one that it gets right",
                self.builds,
            )
        skipped = f"one of the {high - low - 1} operations before it may be the cause" if high - low > 1 else ""
        return self._describe(found, "; ".join(part for part in (skipped, note) if part))

    def _wrong_operand(self, position: int) -> tuple[int, OutputAgreement] | None:
        operands = [self._nodes.index(n) for n in self._nodes[position].all_input_nodes if n in self._nodes]
        if not operands or self.builds >= self._max_builds:
            return None
        try:
            return self._first_wrong(sorted(operands))
        except AITuneError:
            # A candidate that cannot be built without the operation itself (nothing else to quantise, say).
            return None

    def _describe(self, found: tuple[int, OutputAgreement], note: str) -> Divergence:
        position, figures = found
        node = self._nodes[position]
        return Divergence(_part_of(node), str(node.target), figures.relative_l2, figures.allowed, self.builds, note)

    def _first_wrong(self, positions: Sequence[int]) -> tuple[int, OutputAgreement] | None:
        """Build with the values at some positions as outputs, and return the first that does not agree."""
        self.builds += 1
        tapped = _Tapped(_with_outputs(self._graph_module, [self._nodes[position] for position in positions]))
        call = Sample(tuple(self._tensors), {})
        graph_spec = _fixed_graph(tapped, call)
        references = make_references(tapped, graph_spec, [call], max_corners=0)
        reference = references.calls[0]
        output = self._run_candidate(tapped, graph_spec, reference.call)
        for position, right, got, known in zip(
            positions, reference.output, output, reference.expectations, strict=True
        ):
            found = compare_outputs([right], [got], [replace(known, batch_axis=None)], budget=self._budget)
            if found.rejection is not None:
                figures = (
                    found.outputs[0] if found.outputs else OutputAgreement("", float("nan"), 0.0, None, None, None)
                )
                return position, figures
        return None

    def _run_candidate(self, module: torch.nn.Module, graph_spec: GraphSpec, call: Sample) -> Any:
        own = clone_tensors(call)
        with tempfile.TemporaryDirectory(prefix="aitune-explain-") as folder:
            built = self._backend.fresh().build(module, graph_spec, [call], self._backend.device, Path(folder))
            built.activate()
            try:
                with torch.no_grad():
                    return clone_tensors(built.infer(*own.args, **own.kwargs))
            finally:
                built.deactivate()


def _spread(low: int, high: int) -> list[int]:
    """Return positions after ``low`` up to ``high``, which is one of them, evenly spread and few."""
    count = min(_MOST_TAPS, high - low)
    return sorted({high - (high - low) * number // count for number in range(count)})


def _plain_graph_module(program: torch.export.ExportedProgram) -> torch.fx.GraphModule:
    """Return the graph with its weights as attributes, flat inputs, and no checks of the inputs."""
    graph_module: Any = program.module()
    graph = graph_module.graph
    graph.set_codegen(torch.fx.graph.CodeGen())
    for node in reversed(list(graph.nodes)):
        if node.op == "call_module" and not node.users:
            graph.erase_node(node)
    graph_module.recompile()
    plain: torch.fx.GraphModule = graph_module
    return plain


def _with_outputs(graph_module: torch.fx.GraphModule, nodes: Sequence[torch.fx.Node]) -> torch.fx.GraphModule:
    """Return a copy of a graph that ends with the values of some nodes."""
    graph = torch.fx.Graph()
    copies: dict[torch.fx.Node, torch.fx.Node] = {}
    for node in graph_module.graph.nodes:
        if node.op != "output":
            copies[node] = graph.node_copy(node, lambda old: copies[old])
    graph.output(tuple(copies[node] for node in nodes))
    graph.eliminate_dead_code()
    return torch.fx.GraphModule(graph_module, graph)


def _can_be_tapped(node: torch.fx.Node) -> bool:
    value = node.meta.get("val")
    is_tensor = isinstance(value, torch.Tensor) and value.is_floating_point()
    return node.op == "call_function" and node.target is not operator.getitem and is_tensor and not _is_view(node)


def _is_view(node: torch.fx.Node) -> bool:
    """Whether an operation only looks at its input in another way; it cannot be wrong, and outputs must not alias."""
    schema = getattr(node.target, "_schema", None)
    return schema is not None and any(result.alias_info is not None for result in schema.returns)


def _part_of(node: torch.fx.Node) -> str:
    """Return the path of the submodule of the user's module that an operation belongs to."""
    stack: dict[Any, Any] = node.meta.get("nn_module_stack") or {}
    paths = [entry[0] if isinstance(entry, tuple) else str(entry) for entry in stack.values()]
    deepest = paths[-1] if paths else ""
    # The exported module holds the user's as its only child.
    return deepest.removeprefix("module").removeprefix(".")
