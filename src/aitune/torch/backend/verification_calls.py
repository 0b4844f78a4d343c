"""Calls that a fresh build has to survive before it is called built."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from aitune.exceptions import BuildError
from aitune.torch.backend.flat_module import FlatModule
from aitune.torch.backend.untouched import untouched
from aitune.torch.module.graph_spec import GraphSpec
from aitune.torch.module.sample import Sample

_MOST_CALLS = 4


@dataclass(frozen=True)
class VerificationCalls:
    """Some calls, and what the module answers.

    Args:
        inputs: Input tensors of each call.
        outputs: Output tensors of each call.
        changed: Names of the inputs and buffers that the module changed.
    """

    inputs: tuple[tuple[torch.Tensor, ...], ...]
    outputs: tuple[tuple[torch.Tensor, ...], ...]
    changed: tuple[str, ...]


def verification_calls(
    flat_module: FlatModule, graph_spec: GraphSpec, example: tuple[torch.Tensor, ...], data: Sequence[Sample]
) -> VerificationCalls:
    """Run the module on the example and on recorded calls of different sizes.

    Args:
        flat_module: The module.
        graph_spec: The graph.
        example: The input tensors that it was exported or traced from.
        data: Recorded calls of the graph.
    """
    inputs = [example]
    seen = {tuple(tensor.shape for tensor in example)}
    for sample in data:
        tensors = tuple(tensor.detach() for tensor in graph_spec.input_tensors(*sample))
        shapes = tuple(tensor.shape for tensor in tensors)
        if shapes not in seen and len(inputs) < _MOST_CALLS:
            seen.add(shapes)
            inputs.append(tensors)
    changed: list[str] = []
    outputs = []
    with untouched(flat_module):
        for tensors in inputs:
            watched = _watched(flat_module, graph_spec, own := tuple(tensor.clone() for tensor in tensors))
            versions = {name: tensor._version for name, tensor in watched.items()}
            outputs.append(tuple(output.clone() for output in flat_module(*own)))
            after = _watched(flat_module, graph_spec, own)
            changed += [
                name
                for name in versions
                if after.get(name) is not watched[name] or after[name]._version != versions[name]
            ]
    return VerificationCalls(tuple(inputs), tuple(outputs), tuple(dict.fromkeys(changed)))


def _watched(
    flat_module: FlatModule, graph_spec: GraphSpec, tensors: Sequence[torch.Tensor]
) -> dict[str, torch.Tensor]:
    named = {f"input {spec}": tensor for spec, tensor in zip(graph_spec.input_spec.tensor_specs, tensors, strict=True)}
    named.update({f"buffer {name.removeprefix('module.')}": buffer for name, buffer in flat_module.named_buffers()})
    return {name: tensor for name, tensor in named.items() if not tensor.is_inference()}


def require_pure(changed: Sequence[str], backend: str, graph: str) -> None:
    """Refuse a module whose forward changes its inputs or buffers, where the backend would lose the change.

    Args:
        changed: Names of what it changes.
        backend: Description of the backend.
        graph: Name of the graph.

    Raises:
        BuildError: The module changes something.
    """
    if changed:
        raise BuildError(
            f"{backend} cannot run a module whose forward changes its inputs or buffers, the change would be lost; it "
            f"changes {', '.join(changed)}",
            backend=backend,
            graph=graph,
        )
