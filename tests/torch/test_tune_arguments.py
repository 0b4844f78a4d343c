"""Arguments of the entry points that are not usable are refused at once, with what to do."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch

import aitune.torch as ait
from aitune.exceptions import AITuneUserInputError
from aitune.torch.tune_arguments import check_device, check_listeners, check_values, hard_to_build


@pytest.mark.parametrize("listeners", [[3], 3, "log", [type("L", (), {"on_event": print})], [None]])
def test_listeners_that_cannot_hear(listeners: Any) -> None:
    with pytest.raises(AITuneUserInputError, match="on_event"):
        check_listeners(listeners)


@pytest.mark.parametrize(
    "flag", ["dry_run", "clear_cache", "disable_external_logging", "ignore_failing_modules", "retune"]
)
def test_a_flag_that_is_no_bool(flag: str) -> None:
    with pytest.raises(AITuneUserInputError, match=f"{flag} must be True or False, got 'no'"):
        ait.tune(print, [torch.ones(1)], **{flag: "no"})  # type: ignore[arg-type]


@pytest.mark.skipif(torch.accelerator.is_available(), reason="needs a machine without an accelerator")
@pytest.mark.parametrize("device", ["cuda", "cuda:7", "xpu", "meta", "no-such", 3.5, 10**30])
def test_a_device_is_never_advised_that_is_not_there(device: Any) -> None:
    with pytest.raises(AITuneUserInputError) as caught:
        check_device(device)
    assert str(caught.value).partition("; give ")[2].startswith("'cpu', or leave it out")


def test_a_module_without_values() -> None:
    net = ait.Module(torch.nn.Linear(2, 2, device="meta").eval(), "net")
    with pytest.raises(AITuneUserInputError, match=r"net: 'weight' is on the meta device.*load the weights"):
        ait.tune(net, [torch.ones(2)], dry_run=True)
    assert net.state.value == "init"
    with pytest.raises(AITuneUserInputError, match="no shape yet"):
        check_values("net", torch.nn.LazyLinear(3))
    check_values("net", torch.nn.BatchNorm1d(3))


@pytest.mark.parametrize(
    "change",
    [{"storage": 3}, {"storage": ait.LocalTorchStorage}, {"keep_alternatives": -1}, {"include_original_weights": 1}],
)
def test_arguments_of_save(tmp_path: Path, change: dict[str, Any]) -> None:
    with pytest.raises(AITuneUserInputError, match=next(iter(change))):
        ait.save(torch.nn.Identity(), tmp_path / "x.ait", **change)


@pytest.mark.parametrize(
    "change",
    [{"storage": 3}, {"strict": "no"}, {"allow_native_code": 0}, {"disable_external_logging": None}, {"verify": True}],
)
def test_arguments_of_load(tmp_path: Path, change: dict[str, Any]) -> None:
    with pytest.raises(AITuneUserInputError, match=next(iter(change))):
        ait.load(None, tmp_path / "x.ait", **change)


@pytest.mark.parametrize("shapes", [3, "x", [1], {3: (1,)}, {"x": 4}, {"x": ("y",)}])
def test_dynamic_shapes_that_are_none(shapes: Any) -> None:
    with pytest.raises(AITuneUserInputError, match="dynamic_shapes"):
        ait.Module(torch.nn.Identity(), "net", dynamic_shapes=shapes)


class Sparse(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.eye(2).to_sparse())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (self.weight @ x.T).T


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("make", "advice"),
    [
        (lambda: torch.jit.trace(torch.nn.Linear(2, 2).eval(), torch.ones(1, 2)), "wrap the ordinary module"),
        (lambda: torch.ao.nn.quantized.dynamic.Linear(2, 2), "wrap the module as it was before"),
        (Sparse, r"'0\.weight' is sparse.*to_dense"),
    ],
    ids=["traced", "quantised", "sparse"],
)
def test_what_few_backends_take_is_said_with_what_to_wrap_instead(make: Any, advice: str) -> None:
    net = ait.Module(torch.nn.Sequential(make()).eval(), "net")
    report = ait.tune(net, [torch.ones(2)], dry_run=True)
    assert any(re.search(advice, warning) for warning in report.warnings)


def test_an_ordinary_module_is_not_warned_of() -> None:
    assert hard_to_build(torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.BatchNorm1d(2))) == []
