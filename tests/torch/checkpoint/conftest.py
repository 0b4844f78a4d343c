"""Builds that many tests save and load: each is made once."""

from __future__ import annotations

import pytest
from tuned_parts import StoredEncoder

from aitune.torch.backend.onnx_runtime_backend import ONNXRuntimeBackend
from aitune.torch.backend.openvino_backend import OpenVINOBackend


@pytest.fixture(scope="session")
def onnx_encoder(tmp_path_factory: pytest.TempPathFactory) -> StoredEncoder:
    return StoredEncoder.build(ONNXRuntimeBackend(), tmp_path_factory.mktemp("onnx"))


@pytest.fixture(scope="session")
def openvino_encoder(tmp_path_factory: pytest.TempPathFactory) -> StoredEncoder:
    return StoredEncoder.build(OpenVINOBackend(), tmp_path_factory.mktemp("openvino"))
