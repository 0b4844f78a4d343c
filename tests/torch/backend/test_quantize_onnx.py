from __future__ import annotations

import logging
from typing import Any

import pytest
import torch

from aitune.exceptions import AITuneUserInputError, BuildError
from aitune.testing.backend_conformance import BackendConformance
from aitune.testing.graphs import call
from aitune.testing.tiny_models import TinyConvNet, TinyMLP, seeded
from aitune.torch.backend.onnx_runtime_backend import ONNXRuntimeBackend, ONNXRuntimeBackendConfig

pytest.importorskip("onnxruntime")
INT8 = ONNXRuntimeBackendConfig(quantization="int8_dynamic")


class TestInt8Conformance(BackendConformance):
    relative_tolerance = 0.05

    @classmethod
    def make_backend(cls) -> ONNXRuntimeBackend:
        return ONNXRuntimeBackend(INT8)


@pytest.mark.parametrize(
    ("make", "shape"), [(TinyMLP, (2, 8)), (TinyConvNet, (2, 3, 8, 8))], ids=["products", "convolution"]
)
def test_it_loses_some_precision_and_says_so(build: Any, make: Any, shape: tuple[int, ...]) -> None:
    module, x = seeded(make), torch.rand(shape, generator=torch.Generator().manual_seed(0))
    backend = build(ONNXRuntimeBackend(INT8), module, [call(x)])
    expected = module(x).detach()
    assert not backend.is_exact
    assert ONNXRuntimeBackend().is_exact
    assert backend.notes == ("2 operators compute on 8-bit integers",)
    assert 1e-4 < (backend.infer(x) - expected).norm() / expected.norm() < 0.1
    assert backend.key() != ONNXRuntimeBackend().key()


def test_a_model_with_nothing_to_quantise_is_refused(build: Any) -> None:
    with pytest.raises(BuildError, match="nothing in the model could be quantised"):
        build(ONNXRuntimeBackend(INT8), torch.nn.Softmax(-1), [call(torch.rand(2, 3))])


def test_the_root_logger_is_as_before(build: Any, caplog: pytest.LogCaptureFixture) -> None:
    root = logging.getLogger()
    before = (list(root.handlers), list(root.filters), root.level)
    build(ONNXRuntimeBackend(INT8), seeded(TinyMLP), [call(torch.rand(2, 8))])
    assert (root.handlers, root.filters, root.level) == before
    assert [record for record in caplog.records if record.name == "root"] == []


def test_settings_are_checked() -> None:
    with pytest.raises(AITuneUserInputError, match="quantization must be one of None, 'int8_dynamic'"):
        ONNXRuntimeBackendConfig(quantization="int4")  # type: ignore[arg-type]
