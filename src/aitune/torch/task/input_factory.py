"""Calls that a user makes for wanted sizes, where making them up from samples would not give valid ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import torch

from aitune.exceptions import AITuneError, AITuneUserInputError
from aitune.torch.module.graph_spec import GraphSpec
from aitune.torch.module.sample import Sample
from aitune.torch.module.sample_metadata import SampleMetadata

InputFactory: TypeAlias = Callable[[dict[str, int]], Any]
"""``input_factory(sizes)``: takes the value of each symbol by name, returns a call: a tensor, a tuple or a dict."""


def factory_call(input_factory: InputFactory, graph_spec: GraphSpec, sizes: Mapping[str, int]) -> Sample:
    """Let the user make a call, and see that it is the one that was asked for.

    Args:
        input_factory: The user's function.
        graph_spec: The graph that the call has to belong to.
        sizes: Wanted value of each symbol.

    Returns:
        The call in canonical form.

    Raises:
        AITuneUserInputError: The factory raised, or returned something that is no call of the graph, or one with other
            sizes.
    """
    asked = f"input_factory({dict(sizes)})"
    try:
        made = input_factory(dict(sizes))
    except Exception as error:
        raise AITuneUserInputError(
            f"{asked} raised {type(error).__name__}: {error}; it has to return a call for every size in the range: "
            f"{_ranges(graph_spec)}"
        ) from error
    args, kwargs = as_call(made, f"what {asked} returned")
    try:
        named = graph_spec.forward_signature.bind(args, kwargs)
        found = SampleMetadata.from_inputs(named, strict=graph_spec.input_spec.strict)
    except AITuneError as error:
        raise AITuneUserInputError(f"{asked} returned no call of the module: {error}") from error
    if found != graph_spec.input_spec:
        raise AITuneUserInputError(
            f"{asked} returned another kind of call: expected {graph_spec.input_spec.describe()}, "
            f"got {found.describe()}"
        )
    call = graph_spec.forward_signature.to_call(named)
    for tensor, spec in zip(graph_spec.input_tensors(*call), graph_spec.input_spec.tensor_specs, strict=True):
        wanted = tuple(axis.at(sizes) for axis in spec.axes)
        if tuple(tensor.shape) != wanted:
            raise AITuneUserInputError(
                f"{asked} returned {spec} with shape {tuple(tensor.shape)}; expected {wanted} for these sizes"
            )
    return call


def as_call(made: Any, asked: str) -> tuple[tuple[Any, ...], Mapping[str, Any]]:
    """Take what a user gave as a call apart into positional and keyword arguments.

    Args:
        made: A tensor, a tuple of positional arguments, or a dict of arguments by name.
        asked: What it is, for the error.

    Raises:
        AITuneUserInputError: It is something else.
    """
    if isinstance(made, Sample):
        return made.args, made.kwargs
    if isinstance(made, torch.Tensor):
        return (made,), {}
    if isinstance(made, tuple):
        return made, {}
    if isinstance(made, Mapping) and all(isinstance(name, str) for name in made):
        return (), made
    raise AITuneUserInputError(
        f"{asked} is a {type(made).__name__}; expected a tensor, a tuple of positional arguments, or a dict of "
        f"arguments by name"
    )


def _ranges(graph_spec: GraphSpec) -> str:
    return ", ".join(f"{symbol.name} {symbol.min}..{symbol.max}" for symbol in graph_spec.symbols.values()) or "none"
