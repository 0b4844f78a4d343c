from __future__ import annotations

import copy
from typing import Any

import pytest
import torch

from aitune.exceptions import AITuneUserInputError, ArtifactError, BuildError
from aitune.testing.backend_conformance import BackendConformance
from aitune.testing.graphs import call, record_graph
from aitune.testing.tiny_models import seeded
from aitune.torch.backend.torchao_backend import TorchAOBackend, TorchAOBackendConfig

pytest.importorskip("torchao")
CALLS = [call(torch.rand(2, 64, generator=torch.Generator().manual_seed(0)))]


def wide() -> torch.nn.Module:
    """Layers that are large enough: dynamic int8 leaves out those of 16 inputs and fewer."""
    return seeded(lambda: torch.nn.Sequential(torch.nn.Linear(64, 48), torch.nn.ReLU(), torch.nn.Linear(48, 32)))


class TestTorchAOConformance(BackendConformance):
    relative_tolerance = 0.05

    @classmethod
    def make_backend(cls) -> TorchAOBackend:
        return TorchAOBackend(TorchAOBackendConfig("int8_weight_only"))


def relative_error(backend: Any, module: torch.nn.Module) -> float:
    expected = module(*CALLS[0].args).detach()
    return float((backend.infer(*CALLS[0].args) - expected).norm() / expected.norm())


@pytest.mark.parametrize("name", ["int8_dynamic", "int8_weight_only", "int4_weight_only"])
def test_it_loses_some_precision_and_says_so(build: Any, name: str) -> None:
    module = wide()
    before = copy.deepcopy(module.state_dict())
    backend = build(TorchAOBackend(TorchAOBackendConfig(name)), module, CALLS)
    assert not backend.is_exact
    assert backend.describe() == f"TorchAO({name})"
    assert backend.notes == ("2 layers were quantised",)
    assert 1e-4 < relative_error(backend, module) < 0.3
    for key, value in module.state_dict().items():
        assert type(value) is torch.Tensor
        assert torch.equal(value, before[key])


@pytest.mark.slow
def test_compiled(build: Any) -> None:
    module = wide()
    backend = build(TorchAOBackend(TorchAOBackendConfig("int8_weight_only", compile=True)), module, CALLS)
    assert backend.describe() == "TorchAO(int8_weight_only, compile=True)"
    assert 1e-4 < relative_error(backend, module) < 0.05


def test_a_configuration_of_torchao_is_kept_as_plain_data(build: Any) -> None:
    from torchao.quantization import Int8WeightOnlyConfig

    config = TorchAOBackendConfig(Int8WeightOnlyConfig(version=2))
    assert TorchAOBackendConfig.from_dict(config.to_dict()) == config
    module = wide()
    backend = build(TorchAOBackend(config), module, CALLS)
    assert "Int8WeightOnlyConfig" in backend.describe()
    assert 1e-4 < relative_error(backend, module) < 0.05


def test_a_filter_chooses_the_layers_and_cannot_be_stored(build: Any) -> None:
    config = TorchAOBackendConfig("int8_weight_only", filter_fn=lambda module, name: name == "0")
    backend = build(TorchAOBackend(config), wide(), CALLS)
    assert backend.notes == ("1 layers were quantised",)
    with pytest.raises(ArtifactError, match="filter_fn"):
        backend.to_dict()
    with pytest.raises(BuildError, match="quantised no layer"):
        build(TorchAOBackend(TorchAOBackendConfig(filter_fn=lambda module, name: False)), wide(), CALLS)


def test_what_cannot_run_is_refused_before_a_build() -> None:
    graph_spec, _ = record_graph(torch.nn.ReLU(), CALLS)
    cpu = torch.device("cpu")
    assert "no linear layer" in str(TorchAOBackend().can_run(torch.nn.ReLU(), graph_spec, cpu))
    on_gpu = TorchAOBackend(TorchAOBackendConfig("float8_dynamic"))
    assert "runs on cuda" in str(on_gpu.can_run(wide(), graph_spec, cpu))


@pytest.mark.parametrize("config", ["int3", 8, None, {"bits": 8}])
def test_settings_are_checked(config: Any) -> None:
    with pytest.raises(AITuneUserInputError, match="quantization_config must be one of 'int8_dynamic'"):
        TorchAOBackendConfig(config)
