from __future__ import annotations

import pytest
import torch

from aitune.testing.backend_conformance import BackendConformance
from aitune.torch.backend.torch_inductor_jit_backend import TorchInductorJitBackend, TorchInductorJitBackendConfig

pytestmark = pytest.mark.slow


class TestTorchInductorJitConformance(BackendConformance):
    @classmethod
    def make_backend(cls) -> TorchInductorJitBackend:
        return TorchInductorJitBackend()
