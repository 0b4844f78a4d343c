"""Calls that a just-in-time compiler has to see, so that nothing is left to compile while serving."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from aitune.torch.backend.export_sizes import choose_example, coincident_symbols
from aitune.torch.module.graph_spec import GraphSpec
from aitune.torch.module.sample import Sample


def compile_sizes(graph_spec: GraphSpec, recorded: Sequence[dict[str, int]]) -> list[dict[str, int]]:
    """Return the sizes to compile for: a general one first, then those where compilers make special cases.

    Special are a size of 1 and the ends of the range. Symbols that agreed in every recorded call stay equal.

    Args:
        graph_spec: The graph.
        recorded: Values of the symbols in each recorded call, at least one.

    Returns:
        Values of all symbols, without repetition.
    """
    symbols = graph_spec.symbols
    _, general = choose_example(symbols, recorded)
    grouped = coincident_symbols(symbols, recorded)
    groups = [*grouped, *((name,) for name in symbols if not any(name in group for group in grouped))]
    lowest = {name: max(symbols[n].min for n in group) for group in groups for name in group}
    highest = {name: min(symbols[n].max for n in group) for group in groups for name in group}
    sizes = [general, *recorded]
    sizes += [{**general, **{name: lowest[name] for name in group}} for group in groups if lowest[group[0]] == 1]
    sizes += [lowest, highest]
    return [dict(items) for items in dict.fromkeys(tuple((name, size[name]) for name in symbols) for size in sizes)]


def made_up_sample(graph_spec: GraphSpec, device: torch.device) -> Sample:
    """Make a call of a graph without a recorded one: zeros, which are valid as indices too.

    Args:
        graph_spec: The graph.
        device: Device of the tensors.
    """
    sizes = {name: min(max(symbol.min, 2), symbol.max) for name, symbol in graph_spec.symbols.items()}
    return graph_spec.make_call(
        [
            torch.zeros([axis.at(sizes) for axis in spec.axes], dtype=spec.dtype, device=device)
            for spec in graph_spec.input_spec.tensor_specs
        ]
    )


def call_maker(graph_spec: GraphSpec) -> Callable[[Sequence[torch.Tensor]], Sample]:
    """Return ``graph_spec.make_call``, made fast for calls whose arguments are tensors and constants, not nested.

    Args:
        graph_spec: The graph.
    """
    # A container may look at what it is made of.
    places: list[Any] = [torch.empty(0) for _ in graph_spec.input_spec.tensor_specs]
    args, kwargs = graph_spec.make_call(places)
    position = {id(place): number for number, place in enumerate(places)}
    found = [id(value) for value in (*args, *kwargs.values()) if id(value) in position]
    if len(found) != len(places):
        return graph_spec.make_call
    positional = [(position.get(id(value)), value) for value in args]
    named = [(name, position.get(id(value)), value) for name, value in kwargs.items()]

    def make_call(tensors: Sequence[torch.Tensor]) -> Sample:
        return Sample(
            tuple([value if number is None else tensors[number] for number, value in positional]),
            {name: value if number is None else tensors[number] for name, number, value in named},
        )

    return make_call
