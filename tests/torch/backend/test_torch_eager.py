from __future__ import annotations

from typing import Any

import pytest
import torch

from aitune.exceptions import AITuneUserInputError, ArtifactError
from aitune.testing.backend_conformance import BackendConformance
from aitune.testing.graphs import call
from aitune.testing.tiny_models import TinyConvNet, TinyMLP, seeded
from aitune.torch.backend.torch_eager import TorchEagerBackend, TorchEagerBackendConfig, channels_last_view


class TestTorchEagerConformance(BackendConformance):
    @classmethod
    def make_backend(cls) -> TorchEagerBackend:
        return TorchEagerBackend()


class TestTorchEagerChannelsLastConformance(BackendConformance):
    @classmethod
    def make_backend(cls) -> TorchEagerBackend:
        return TorchEagerBackend(TorchEagerBackendConfig(channels_last=True))


def test_plain_eager_is_the_original_itself() -> None:
    backend = TorchEagerBackend()
    assert backend.runs_original
    assert backend.follows_weights
    assert backend.is_exact
    assert backend.describe() == "TorchEager"


def test_channels_last_lays_out_copies_of_the_weights(build: Any) -> None:
    network, image = seeded(TinyConvNet), torch.rand(2, 3, 8, 8)
    backend = build(TorchEagerBackend(TorchEagerBackendConfig(channels_last=True)), network, [call(image)])
    torch.testing.assert_close(backend.infer(image), network(image).detach())
    assert network.convolution.weight.is_contiguous()
    view = channels_last_view(network)
    assert view.convolution.weight.is_contiguous(memory_format=torch.channels_last)
    assert view.linear.weight is network.linear.weight
    assert not backend.follows_weights
    assert not backend.runs_original


def test_channels_last_keeps_shared_submodules_shared() -> None:
    layer = torch.nn.Conv2d(3, 3, 1)
    view = channels_last_view(torch.nn.Sequential(layer, layer))
    assert view[0] is view[1]
    assert view[0] is not layer


def test_autocast_gives_precision_away_and_keeps_the_dtype(build: Any) -> None:
    module, x = seeded(TinyMLP), torch.rand(2, 8)
    backend = build(TorchEagerBackend(TorchEagerBackendConfig(autocast_enabled=True)), module, [call(x)])
    answer = backend.infer(x)
    assert answer.dtype is torch.float32
    assert torch.equal(answer, answer.bfloat16().float())
    assert not torch.equal(answer, module(x))
    assert not backend.is_exact
    assert backend.describe() == "TorchEager(autocast_enabled=True)"


def test_keys_tell_configurations_apart() -> None:
    configs = [TorchEagerBackendConfig(), TorchEagerBackendConfig(channels_last=True), TorchEagerBackendConfig(True)]
    assert len({TorchEagerBackend(config).key() for config in configs}) == 3


def test_config_survives_a_round_trip_and_refuses_what_it_does_not_know() -> None:
    config = TorchEagerBackendConfig(True, torch.float16)
    assert TorchEagerBackendConfig.from_dict(config.to_dict()) == config
    assert config.to_dict()["autocast_dtype"] == "torch.float16"
    for data in ({"colour": "red"}, {"autocast_dtype": "torch.no_such"}):
        with pytest.raises(ArtifactError, match="TorchEagerBackendConfig cannot be read"):
            TorchEagerBackendConfig.from_dict(data)
    with pytest.raises(AITuneUserInputError, match="autocast_dtype"):
        TorchEagerBackendConfig(True, torch.int8)
