from __future__ import annotations

import pytest
import torch

from aitune.testing.backend_conformance import BackendConformance
from aitune.torch.backend.openvino_backend import OpenVINOBackend, OpenVINOBackendConfig


class TestOpenVINOConformance(BackendConformance):
    @classmethod
    def make_backend(cls) -> OpenVINOBackend:
        return OpenVINOBackend()
