"""Why a call does not belong to a graph, in words: what a written guard checks, done slowly."""

from __future__ import annotations

from collections.abc import Sequence

from aitune.torch.module.container_access import classes_of
from aitune.torch.module.graph_spec import GraphSpec
from aitune.torch.module.sample_metadata import SampleMetadata


def mismatch(
    metadata: SampleMetadata, graph_spec: GraphSpec, equal_symbols: Sequence[Sequence[str]] = ()
) -> str | None:
    """Return in words why a call does not belong to a graph, sizes included; ``None`` when it does.

    Args:
        metadata: Metadata of the call, with every axis fixed.
        graph_spec: The graph.
        equal_symbols: Groups of symbols that the backend takes for one.
    """
    if metadata != graph_spec.input_spec:
        return f"its arguments are {metadata.describe()}, the graph takes {graph_spec.input_spec.describe()}"
    if classes_of(metadata.structure) != classes_of(graph_spec.input_spec.structure):
        return "its containers are of other classes than those of the graph, which only have the same names"
    values: dict[str, int] = {}
    for seen, spec in zip(metadata.tensor_specs, graph_spec.input_spec.tensor_specs, strict=True):
        if seen.device != spec.device:
            return f"{seen} is on {seen.device}, the graph was tuned on {spec.device}"
        for number, (actual, axis) in enumerate(zip(seen.axes, spec.axes, strict=True)):
            if axis.symbol is None:
                fits = actual.size == axis.size
            else:
                value = values.setdefault(axis.symbol.name, actual.size // axis.size)
                fits = actual.size == value * axis.size and axis.symbol.min <= value <= axis.symbol.max
            if not fits:
                return f"axis {number} of {seen} is outside the tuned range {axis} = {axis.min}..{axis.max}"
    for group in equal_symbols:
        if len({values[name] for name in group if name in values}) > 1:
            return f"the sizes {', '.join(group)} differ, and the backend takes them for one"
    return None
