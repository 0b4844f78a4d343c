from __future__ import annotations

import pytest
import torch

from aitune.testing.backend_conformance import BackendConformance
from aitune.torch.backend.torch_inductor_aot_backend import TorchInductorAotBackend, TorchInductorAotBackendConfig

pytestmark = pytest.mark.slow


class TestTorchInductorAotConformance(BackendConformance):
    @classmethod
    def make_backend(cls) -> TorchInductorAotBackend:
        return TorchInductorAotBackend()
