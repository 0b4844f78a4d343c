"""torch.export of a graph, once for all ahead-of-time backends of a run.

Which axes become one is left to torch.export: symbols that had the same value in every recorded call are exported as
separate unnamed dimensions first, and those whose equality it demands are merged. An unnamed dimension is always
exported with a lower bound of at least 2; where a size of 1 has to work, a second export gives the merged dimensions
names, and a named dimension keeps its own bounds.
"""

from __future__ import annotations

import contextvars
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from aitune.exceptions import BuildError, ControlFlowError, ExportError
from aitune.torch.backend.export_sizes import SymbolGroups, choose_example, coincident_symbols
from aitune.torch.backend.flat_module import FlatModule
from aitune.torch.backend.quiet_converters import quiet_converters
from aitune.torch.backend.untouched import untouched
from aitune.torch.module.graph_spec import GraphSpec
from aitune.torch.module.sample import Sample
from aitune.torch.module.tensor_spec import Axis, Symbol

_MESSAGE_LINES = 12


@dataclass(frozen=True)
class ExportedGraph:
    """A graph as torch.export sees it.

    Args:
        program: The exported program: flat tensors in, flat tensors out.
        flat_module: The module that was exported; it calls the original one.
        example: The input tensors it was exported from, none of them shared with another.
        equal_symbols: Groups of symbols that the module needs to be equal.
        mutations: Names of the buffers, parameters and inputs that the forward changes.
        seconds: Time that the export took.
    """

    program: torch.export.ExportedProgram
    flat_module: FlatModule
    example: tuple[torch.Tensor, ...]
    equal_symbols: SymbolGroups
    mutations: tuple[str, ...]
    seconds: float


def require_free_sizes(exported: ExportedGraph, graph_spec: GraphSpec, description: str) -> None:
    """Make sure that a compiler that worked on an exported graph left every size free that may vary.

    A compiler may note of a size that it is, say, 16 or more; where the range ends at 16 nothing but 16 is left, and
    what was compiled reads and writes out of bounds for any other size.

    Args:
        exported: The graph, after it was compiled.
        graph_spec: The graph.
        description: The backend, for people.

    Raises:
        BuildError: A size was fixed.
    """
    for sizes, spec in zip(_sizes_of_inputs(exported.program), graph_spec.input_spec.tensor_specs, strict=True):
        for number, (size, axis) in enumerate(zip(sizes, spec.axes, strict=True)):
            if axis.symbol is not None and isinstance(size, torch.SymInt) and size.node.expr.is_number:
                raise BuildError(
                    f"{description} fixed axis {number} of {spec} to {size.node.expr}, where {axis.min}..{axis.max} "
                    f"was asked for",
                    backend=description,
                    graph=graph_spec.name,
                )


class _SharedExports:
    """Exports of one run, failed ones included. It keeps the modules alive, so it must not outlive the run."""

    def __init__(self) -> None:
        self._results: dict[Any, tuple[torch.nn.Module, ExportedGraph | ExportError]] = {}

    def get(self, key: Any) -> ExportedGraph | ExportError | None:
        entry = self._results.get(key)
        return entry[1] if entry is not None else None

    def put(self, key: Any, module: torch.nn.Module, result: ExportedGraph | ExportError) -> None:
        self._results[key] = (module, result)


_shared: contextvars.ContextVar[_SharedExports | None] = contextvars.ContextVar("aitune_shared_exports", default=None)


@contextmanager
def shared_exports() -> Iterator[None]:
    """Export each graph once inside the block, however many backends ask; nothing is kept after it.

    A block rather than a cache on the module: an export holds the weights as they were, so it must not be found again
    by a later run, and the memory is free at a known moment. Blocks may nest; the outer one keeps the exports.
    """
    if _shared.get() is not None:
        yield
        return
    token = _shared.set(_SharedExports())
    try:
        yield
    finally:
        _shared.reset(token)


def export_graph(
    module: torch.nn.Module, graph_spec: GraphSpec, data: Sequence[Sample], device: torch.device
) -> ExportedGraph:
    """Export one graph of a module; inside :func:`shared_exports` at most once.

    Args:
        module: The module; it is not changed.
        graph_spec: The graph.
        data: Recorded calls of the graph, at least one.
        device: Device of the module.

    Returns:
        The exported graph.

    Raises:
        ExportError: torch.export refused the module, or would have fixed or narrowed an axis that varies.
    """
    shared = _shared.get()
    if shared is None:
        return _export(module, graph_spec, data, device)
    key = (id(module), str(device), *_identity(graph_spec))
    result = shared.get(key)
    if result is None:
        try:
            result = _export(module, graph_spec, data, device)
        except ExportError as error:
            result = error
        shared.put(key, module, result)
    if isinstance(result, ExportError):
        raise type(result)(result.message, backend=result.backend, graph=result.graph) from result
    return result


def _identity(graph_spec: GraphSpec) -> tuple[Any, ...]:
    return (
        graph_spec.input_spec.identity,
        graph_spec.input_spec.tensor_specs,
        tuple(constant.key for constant in graph_spec.input_spec.constants),
        graph_spec.output_spec.identity,
    )


def make_example(graph_spec: GraphSpec, data: Sequence[Sample], device: torch.device) -> tuple[torch.Tensor, ...]:
    """Make the input tensors to export or trace from: sizes of 2 or more where the bounds allow, nothing shared.

    Args:
        graph_spec: The graph.
        data: Recorded calls of the graph, at least one.
        device: Device of the tensors.

    Raises:
        ExportError: There is no recorded call, or an input is sparse.
    """
    if not data:
        raise ExportError("there is no recorded call to export from", graph=graph_spec.name)
    recorded = [graph_spec.symbol_sizes(sample) for sample in data]
    index, sizes = choose_example(graph_spec.symbols, recorded)
    with torch.inference_mode(False), torch.no_grad():
        tensors = graph_spec.input_tensors(*graph_spec.resize(data[index], sizes))
        for tensor, spec in zip(tensors, graph_spec.input_spec.tensor_specs, strict=True):
            if tensor.layout is not torch.strided:
                raise ExportError(f"input {spec} is sparse ({tensor.layout})", graph=graph_spec.name)
        # One object for two arguments would make them one argument for ever.
        return tuple(tensor.detach().to(device).clone(memory_format=torch.contiguous_format) for tensor in tensors)


def _export(
    module: torch.nn.Module, graph_spec: GraphSpec, data: Sequence[Sample], device: torch.device
) -> ExportedGraph:
    started = time.perf_counter()
    example = make_example(graph_spec, data, device)
    flat_module = FlatModule(module, graph_spec)
    varying = {name: symbol for name, symbol in graph_spec.symbols.items() if symbol.min < symbol.max}
    coincident = coincident_symbols(varying, [graph_spec.symbol_sizes(sample) for sample in data])
    unnamed = {name for group in coincident for name in group}
    with untouched(flat_module):
        program = _torch_export(flat_module, example, graph_spec, _dimensions(varying, (), unnamed))
        equal = _merged_symbols(program, graph_spec, unnamed)
        if any(varying[name].min < 2 for name in unnamed):
            program = _torch_export(flat_module, example, graph_spec, _dimensions(varying, equal, set()))
    _require_dynamic(program, graph_spec, _bounds(varying, equal))
    return ExportedGraph(program, flat_module, example, equal, _mutations(program), time.perf_counter() - started)


def _mutations(program: torch.export.ExportedProgram) -> tuple[str, ...]:
    """Name what the program changes. Its signature says so only after its in-place operators were taken apart."""
    if not any(_writes(node) for node in program.graph.nodes):
        return ()
    with quiet_converters():  # torch warns of what it does itself when it copies a program
        signature = program.run_decompositions({}).graph_signature
    changed = [
        *signature.buffers_to_mutate.values(),
        *getattr(signature, "parameters_to_mutate", {}).values(),
        *signature.user_inputs_to_mutate.values(),
    ]
    return tuple(dict.fromkeys(name.removeprefix("module.") for name in changed))


def _writes(node: torch.fx.Node) -> bool:
    schema = getattr(node.target, "_schema", None)
    return schema is not None and any(
        argument.alias_info is not None and argument.alias_info.is_write for argument in schema.arguments
    )


def _dimensions(varying: Mapping[str, Symbol], equal: SymbolGroups, unnamed: set[str]) -> dict[str, Any]:
    """Return a dimension for each symbol; symbols of one group share theirs, within the bounds of all."""
    first_of = {name: group[0] for group in equal for name in group}
    bounds = _bounds(varying, equal)
    dimensions: dict[str, Any] = {}
    for number, (name, symbol) in enumerate(varying.items()):
        first = first_of.get(name, name)
        if name in unnamed:
            dimensions[name] = torch.export.Dim.DYNAMIC(min=symbol.min, max=symbol.max)
        elif first in dimensions:
            dimensions[name] = dimensions[first]
        else:
            low, high = bounds[name]
            # The user's names need not be identifiers; these are.
            dimensions[name] = torch.export.Dim(f"size{number}", min=low, max=high)
    return dimensions


def _bounds(varying: Mapping[str, Symbol], equal: SymbolGroups) -> dict[str, tuple[int, int]]:
    """Return the range of each symbol; symbols that must be equal have the range that all of them allow."""
    group_of = {name: group for group in equal for name in group}
    bounds = {}
    for name in varying:
        group = group_of.get(name, (name,))
        low, high = max(varying[n].min for n in group), min(varying[n].max for n in group)
        if low >= high:
            ranges = ", ".join(f"{n} {varying[n].min}..{varying[n].max}" for n in group)
            raise ExportError(f"axes {', '.join(group)} must be equal, but share no range of sizes ({ranges})")
        bounds[name] = (low, high)
    return bounds


def _torch_export(
    flat_module: FlatModule, example: tuple[torch.Tensor, ...], graph_spec: GraphSpec, dimensions: Mapping[str, Any]
) -> torch.export.ExportedProgram:
    def dimension(axis: Axis) -> Any:
        if axis.symbol is None or axis.symbol.name not in dimensions:
            return None
        found = dimensions[axis.symbol.name]
        return found if axis.size == 1 else axis.size * found

    shapes = tuple(
        {number: found for number, axis in enumerate(spec.axes) if (found := dimension(axis)) is not None}
        for spec in graph_spec.input_spec.tensor_specs
    )
    try:
        return torch.export.export(flat_module, example, dynamic_shapes={"tensors": shapes}, strict=False)
    except ExportError:
        raise
    except Exception as error:
        kind = ControlFlowError if _depends_on_values_or_sizes(error) else ExportError
        raise kind(
            f"torch.export refused the module: {type(error).__name__}: {_shortened(str(error), dimensions)}",
            graph=graph_spec.name,
        ) from error


_CONTROL_FLOW_ERRORS = ("GuardOnDataDependentSymNode", "DataDependentOutputException", "DynamicOutputShapeException")
_CONTROL_FLOW_WORDS = ("data-dependent", "Constraints violated", ".numpy() is not supported", ".tolist()", ".item()")


def _depends_on_values_or_sizes(error: BaseException) -> bool:
    """Read off what torch.export raised whether it met a branch on values or sizes, or a value taken out of a tensor.

    Its errors have no common class for that, and some say it in words alone.
    """
    link: BaseException | None = error
    while link is not None:
        if type(link).__name__ in _CONTROL_FLOW_ERRORS or any(words in str(link) for words in _CONTROL_FLOW_WORDS):
            return True
        link = link.__cause__ or link.__context__
    return False


def _shortened(message: str, dimensions: Mapping[str, Any]) -> str:
    for name, dimension in dimensions.items():
        if isinstance(dimension, torch.export.Dim):
            message = message.replace(dimension.__name__, name)
    lines = [line for line in message.strip().splitlines() if line.strip()]
    more = f"\n... ({len(lines) - _MESSAGE_LINES} more lines)" if len(lines) > _MESSAGE_LINES else ""
    return "\n".join(lines[:_MESSAGE_LINES]) + more


def _sizes_of_inputs(program: torch.export.ExportedProgram) -> list[tuple[Any, ...]]:
    """Return the sizes of the inputs: integers, and symbols of torch for those that vary."""
    names = program.graph_signature.user_inputs
    by_name = {node.name: node for node in program.graph.nodes if node.op == "placeholder"}
    return [tuple(by_name[name].meta["val"].shape) for name in names if isinstance(name, str) and name in by_name]


def _expression(size: Any) -> Any:
    return size.node.expr if isinstance(size, torch.SymInt) else int(size)


def _merged_symbols(program: torch.export.ExportedProgram, graph_spec: GraphSpec, unnamed: set[str]) -> SymbolGroups:
    groups: dict[str, list[str]] = {}
    for sizes, spec in zip(_sizes_of_inputs(program), graph_spec.input_spec.tensor_specs, strict=True):
        for size, axis in zip(sizes, spec.axes, strict=True):
            if axis.symbol is not None and axis.symbol.name in unnamed:
                names = groups.setdefault(str(_expression(size)), [])
                if axis.symbol.name not in names:
                    names.append(axis.symbol.name)
    return tuple(tuple(names) for names in groups.values() if len(names) > 1)


def _require_dynamic(
    program: torch.export.ExportedProgram, graph_spec: GraphSpec, bounds: Mapping[str, tuple[int, int]]
) -> None:
    """Check that every axis that varies does so in the program too, over the whole of its range."""
    for sizes, spec in zip(_sizes_of_inputs(program), graph_spec.input_spec.tensor_specs, strict=True):
        for number, (size, axis) in enumerate(zip(sizes, spec.axes, strict=True)):
            if axis.symbol is None or axis.symbol.name not in bounds:
                continue
            low, high = (axis.size * bound for bound in bounds[axis.symbol.name])
            expression = _expression(size)
            if isinstance(expression, int):
                raise ControlFlowError(
                    f"axis {number} of {spec} varies, but torch.export fixed it to {expression}; the module only "
                    f"works with that size, or computes with it as a number",
                    graph=graph_spec.name,
                )
            found = program.range_constraints.get(expression)
            if found is not None and (found.lower > low or found.upper < high):
                raise ControlFlowError(
                    f"axis {number} of {spec} goes from {low} to {high}, but torch.export allows only "
                    f"{found.lower} to {found.upper}",
                    graph=graph_spec.name,
                )
