"""Quantise the weights of an ONNX model; activations are quantised while it runs."""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from aitune.exceptions import BuildError
from aitune.torch.backend.export_onnx import save_onnx

_INTEGER_OPERATORS = ("MatMulInteger", "ConvInteger", "DynamicQuantizeLSTM", "QAttention", "QEmbedLayerNormalization")


def quantize_dynamic_int8(model_file: Path, backend: str) -> int:
    """Replace the matrix products and convolutions of a model, in place, by ones on 8-bit integers.

    Weights become int8 once, one scale a tensor; activations become uint8 with a scale that each call computes, so no
    calibration data is needed.

    Args:
        model_file: The model, in a folder of its own.
        backend: Description of the backend, for errors.

    Returns:
        How many operators now compute on integers, at least one.

    Raises:
        BuildError: The quantiser refused the model, or there was nothing to quantise.
    """
    import onnx
    from onnxruntime.quantization import QuantType, quantize_dynamic

    with tempfile.TemporaryDirectory(dir=model_file.parent) as folder:
        quantized = Path(folder) / model_file.name
        try:
            with _quiet():
                quantize_dynamic(str(model_file), str(quantized), weight_type=QuantType.QInt8)
            model = onnx.load(str(quantized))
        except Exception as error:
            raise BuildError(
                f"ONNX Runtime cannot quantise the model: {type(error).__name__}: {error}", backend=backend
            ) from error
        count = sum(node.op_type in _INTEGER_OPERATORS for node in model.graph.node)
        if count == 0:
            raise BuildError(
                "nothing in the model could be quantised (no matrix product or convolution with constant weights)",
                backend=backend,
            )
    save_onnx(model, model_file.parent)
    return count


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep the quantiser's advice from an application's log.

    It logs to the root logger itself, and the functions that do so also give that logger a handler where it has none.
    """
    root, handler = logging.getLogger(), logging.NullHandler()

    def only_errors(record: logging.LogRecord) -> bool:
        return record.levelno >= logging.ERROR

    root.addHandler(handler)
    # A filter of the root logger sees what is logged to it directly, nothing that comes up from other loggers.
    root.addFilter(only_errors)
    try:
        yield
    finally:
        root.removeFilter(only_errors)
        root.removeHandler(handler)
