from typing import Any

import pytest
import torch

from aitune.testing.tiny_models import tiny_encoder
from aitune.torch.module.kept_weights import KeptWeights


def test_an_untouched_module_has_nothing_to_put_back() -> None:
    net = tiny_encoder()
    kept = KeptWeights(net)
    kept.put_back()
    assert (kept.put_back_names, kept.lost_names) == ([], [])
    assert kept.names == {name for name, _ in net.named_parameters()}


def test_nothing_is_copied() -> None:
    net = torch.nn.Linear(4, 4)
    kept = KeptWeights(net)
    net.double()
    assert net.weight.dtype is torch.float64
    before = [weight.values.data_ptr() for weight in kept._weights]
    kept.put_back()
    assert [parameter.data_ptr() for parameter in net.parameters()] == before


@pytest.mark.parametrize("times", [1, 2])
def test_each_weight_is_named_once(times: int) -> None:
    net = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 4))
    kept = KeptWeights(net)
    for _ in range(times):
        net[1].double()
        net[0].bias.data.add_(1)
        kept.put_back()
    assert kept.put_back_names == ["1.weight", "1.bias"]
    assert kept.lost_names == ["0.bias"]


def odd_modules() -> list[Any]:
    with torch.inference_mode():
        inference = torch.nn.Linear(4, 4)
    scripted = torch.jit.trace(torch.nn.Linear(4, 4), torch.ones(1, 4))
    empty = torch.nn.Linear(4, 0)
    return [
        inference,
        scripted,
        torch.nn.Linear(4, 4, device="meta"),
        empty,
        torch.nn.Linear(4, 4, dtype=torch.bfloat16),
    ]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("number", range(5))
def test_weights_of_any_kind_are_no_hindrance(number: int) -> None:
    kept = KeptWeights(odd_modules()[number])
    kept.put_back()
    assert (kept.put_back_names, kept.lost_names) == ([], [])
