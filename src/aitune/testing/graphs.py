"""Graph specs made from calls, without the proxy that records them in real use."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from aitune.torch.dynamic_shapes import DynamicShapes
from aitune.torch.module.axis_inference import Observation, infer_input_axes, infer_output_axes
from aitune.torch.module.forward_signature import ForwardSignature
from aitune.torch.module.graph_spec import GraphSpec
from aitune.torch.module.sample import Sample
from aitune.torch.module.sample_metadata import SampleMetadata


def call(*args: Any, **kwargs: Any) -> Sample:
    """Write a call as it would be made."""
    return Sample(args, kwargs)


def record_graph(
    module: torch.nn.Module,
    calls: Sequence[Sample],
    batch_sizes: Sequence[int | None] | None = None,
    dynamic_shapes: DynamicShapes | None = None,
    strict: bool = True,
) -> tuple[GraphSpec, list[Sample]]:
    """Run calls of one kind and describe them.

    Args:
        module: The module, in eval mode.
        calls: The calls, at least one.
        batch_sizes: Batch size of each call; ``None`` takes the first size of the first tensor.
        dynamic_shapes: Axes, where they shall not be inferred.
        strict: Whether constants are part of the identity.

    Returns:
        The graph, and the calls in the form in which they are recorded.
    """
    signature = ForwardSignature.from_callable(module.forward)
    inputs = [signature.bind(sample.args, sample.kwargs) for sample in calls]
    with torch.no_grad():
        outputs = [module(*sample.args, **sample.kwargs) for sample in calls]
    input_specs = [SampleMetadata.from_inputs(named, strict=strict) for named in inputs]
    output_specs = [SampleMetadata.from_outputs(output) for output in outputs]
    shapes = [[tuple(t.shape) for t in spec.tensors_of(tree)] for spec, tree in zip(input_specs, inputs, strict=True)]
    sizes = batch_sizes or [found[0][0] for found in shapes]
    observations = [
        Observation(size, tuple(found), tuple(tuple(t.shape) for t in spec.tensors_of(output)))
        for size, found, spec, output in zip(sizes, shapes, output_specs, outputs, strict=True)
    ]
    input_axes = infer_input_axes(input_specs[0].tensor_specs, observations, dynamic_shapes or {})
    output_axes = infer_output_axes(output_specs[0].tensor_specs, observations, input_axes)
    graph_spec = GraphSpec(
        "graph0",
        input_specs[0].with_axes(input_axes),
        output_specs[0].with_axes(output_axes),
        signature,
        dynamic_shapes,
    )
    return graph_spec, [signature.to_call(named) for named in inputs]
