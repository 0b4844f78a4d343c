from __future__ import annotations

import pytest
import torch
from torch import nn

from aitune.testing.tiny_models import CallCounter, TinyConvNet
from aitune.torch.backend.untouched import untouched


class Cacher(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tables: dict[str, torch.Tensor] = {}
        self.history: list[int] = []
        self.count = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.tables["positions"] = torch.arange(x.shape[0])
        self.history.append(x.shape[0])
        self.count += 1
        self.last = x
        return x


def test_attributes_and_what_they_hold_are_put_back() -> None:
    module = nn.Sequential(Cacher(), Cacher())
    tables = module[0].tables
    with untouched(module):
        module(torch.ones(3))
        assert module[0].count == 1
    for cacher in module:
        assert cacher.tables == {}
        assert cacher.history == []
        assert cacher.count == 0
        assert not hasattr(cacher, "last")
    assert module[0].tables is tables


def test_buffers_keep_their_values_and_unchanged_ones_their_versions() -> None:
    counter, network = CallCounter(), TinyConvNet().eval()
    versions = [buffer._version for buffer in network.buffers()]
    with untouched(counter), untouched(network):
        counter(torch.ones(1, 8))
        network(torch.ones(1, 3, 4, 4))
    assert counter.calls == 0
    assert [buffer._version for buffer in network.buffers()] == versions


def test_replaced_buffers_and_training_flags_come_back() -> None:
    network = TinyConvNet().train()
    network.linear.eval()
    mean = network.norm.running_mean
    with untouched(network):
        assert not any(module.training for module in network.modules())
        network.norm.running_mean = torch.ones(8)
    assert network.norm.running_mean is mean
    assert network.training
    assert network.norm.training
    assert not network.linear.training


def test_random_state_and_grad_mode_are_as_before_also_after_an_error() -> None:
    network = TinyConvNet().eval()
    torch.manual_seed(3)
    expected = torch.rand(4)
    torch.manual_seed(3)

    def fail() -> None:
        with untouched(network):
            torch.rand(7)
            assert not torch.is_grad_enabled()
            network.extra = 1
            raise ValueError("on purpose")

    with pytest.raises(ValueError, match="on purpose"):
        fail()
    assert torch.equal(torch.rand(4), expected)
    assert torch.is_grad_enabled()
    assert not hasattr(network, "extra")
