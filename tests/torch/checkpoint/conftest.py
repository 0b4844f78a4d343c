"""Builds that many tests save and load: each is made once."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tuned_parts import StoredEncoder

from aitune.torch.backend.backend import Backend
from aitune.torch.backend.onnx_runtime_backend import ONNXRuntimeBackend
from aitune.torch.backend.openvino_backend import OpenVINOBackend


@pytest.fixture(scope="session")
def stored_encoder(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Backend], StoredEncoder]:
    built: dict[str, StoredEncoder] = {}

    def get(backend: Backend) -> StoredEncoder:
        key = backend.key()
        if key not in built:
            built[key] = StoredEncoder.build(backend, tmp_path_factory.mktemp(backend.name))
        return built[key]

    return get


@pytest.fixture(scope="session")
def onnx_encoder(stored_encoder: Callable[[Backend], StoredEncoder]) -> StoredEncoder:
    return stored_encoder(ONNXRuntimeBackend())


@pytest.fixture(scope="session")
def openvino_encoder(stored_encoder: Callable[[Backend], StoredEncoder]) -> StoredEncoder:
    return stored_encoder(OpenVINOBackend())
