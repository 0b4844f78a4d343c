"""A graph as an ONNX model on disk: from the shared torch.export first, by tracing as the second choice.

Weights lie in a file beside the model. Runtimes map that file into memory; weights inside the model are parsed and
copied, which makes loading take twice as long and more.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from aitune.exceptions import ExportError
from aitune.torch.backend.export import ExportedGraph
from aitune.torch.backend.flat_module import FlatModule
from aitune.torch.backend.quiet_converters import quiet_converters
from aitune.torch.backend.untouched import untouched
from aitune.torch.module.graph_spec import GraphSpec
from aitune.utils.error_text import error_lines

MODEL_FILE = "model.onnx"
WEIGHTS_FILE = "model.onnx.data"
_MESSAGE_LINES = 8


def input_name(position: int) -> str:
    """Return the name of an input tensor of the model."""
    return f"input{position}"


def output_name(position: int) -> str:
    """Return the name of an output tensor of the model."""
    return f"output{position}"


def _names(graph_spec: GraphSpec) -> dict[str, Any]:
    return {
        "input_names": [input_name(i) for i in range(len(graph_spec.input_spec.tensor_specs))],
        "output_names": [output_name(i) for i in range(len(graph_spec.output_spec.tensor_specs))],
    }


def onnx_from_export(
    exported: ExportedGraph, graph_spec: GraphSpec, folder: Path, opset_version: int | None = None
) -> Path:
    """Write an exported graph as an ONNX model, its weights to a file beside it.

    Args:
        exported: The exported graph.
        graph_spec: The graph.
        folder: Empty folder for the model.
        opset_version: Version of the operator set; ``None`` leaves it to the exporter.

    Returns:
        The model file.

    Raises:
        ExportError: The exporter has no translation for an operator.
    """
    path = folder / MODEL_FILE
    with quiet_converters():
        try:
            program: Any = torch.onnx.export(
                exported.program, dynamo=True, verbose=False, opset_version=opset_version, **_names(graph_spec)
            )
            program.save(str(path), external_data=True)
        except Exception as error:
            raise ExportError(
                f"the ONNX exporter failed: {error_lines(error, _MESSAGE_LINES)}", graph=graph_spec.name
            ) from error
    return path


def onnx_from_trace(
    flat_module: FlatModule,
    example: tuple[torch.Tensor, ...],
    graph_spec: GraphSpec,
    folder: Path,
    opset_version: int | None = None,
) -> Path:
    """Write a module as an ONNX model by tracing one run, its weights to a file beside it.

    A branch on values or sizes stays as this run took it.

    Args:
        flat_module: The module.
        example: Input tensors.
        graph_spec: The graph.
        folder: Empty folder for the model.
        opset_version: Version of the operator set; ``None`` leaves it to the exporter.

    Returns:
        The model file.

    Raises:
        ExportError: The exporter refused the module.
    """
    import onnx

    path = folder / MODEL_FILE
    names = _names(graph_spec)
    specs = (graph_spec.input_spec.tensor_specs, graph_spec.output_spec.tensor_specs)
    dynamic_axes = {
        name: {number: f"{name}_{number}" for number, axis in enumerate(spec.axes) if axis.symbol is not None}
        for group, group_names in zip(specs, names.values(), strict=True)
        for spec, name in zip(group, group_names, strict=True)
    }
    with untouched(flat_module), quiet_converters():
        try:
            torch.onnx.export(
                flat_module,
                tuple(tensor.clone() for tensor in example),
                str(path),
                dynamo=False,
                opset_version=opset_version,
                dynamic_axes=dynamic_axes,
                **names,
            )
            save_onnx(onnx.load(str(path)), folder)
        except Exception as error:
            raise ExportError(
                f"the tracing ONNX exporter failed: {error_lines(error, _MESSAGE_LINES)}", graph=graph_spec.name
            ) from error
    return path


def save_onnx(model: Any, folder: Path) -> None:
    """Write an ONNX model, its weights to a file beside it.

    Args:
        model: The ``onnx.ModelProto``, with its weights in memory.
        folder: Folder for the two files; what lies in it is removed.
    """
    import onnx

    for old in folder.iterdir():
        old.unlink()
    onnx.save_model(model, str(folder / MODEL_FILE), save_as_external_data=True, location=WEIGHTS_FILE)
