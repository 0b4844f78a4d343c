from __future__ import annotations

import pytest
import torch

from aitune.testing.backend_conformance import BackendConformance
from aitune.torch.backend.torch_eager import TorchEagerBackend, TorchEagerBackendConfig


class TestTorchEagerConformance(BackendConformance):
    @classmethod
    def make_backend(cls) -> TorchEagerBackend:
        return TorchEagerBackend()
