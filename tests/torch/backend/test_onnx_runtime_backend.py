from __future__ import annotations

import pytest
import torch

from aitune.testing.backend_conformance import BackendConformance
from aitune.torch.backend.onnx_runtime_backend import ONNXRuntimeBackend, ONNXRuntimeBackendConfig


class TestONNXRuntimeConformance(BackendConformance):
    @classmethod
    def make_backend(cls) -> ONNXRuntimeBackend:
        return ONNXRuntimeBackend()
