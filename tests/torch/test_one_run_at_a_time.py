"""Runs that meet: from another thread, from inside, and with modules whose state changes meanwhile."""

from __future__ import annotations

import threading
from functools import partial
from typing import Any

import pytest
import torch

import aitune.torch as ait
from aitune.exceptions import AITuneUserInputError
from aitune.torch.module.registry import ModuleRegistry
from aitune.torch.module.wrapper_module import ModuleState
from aitune.torch.report.tune_report import TuneReport

SAMPLES = [torch.ones(2), torch.zeros(2)]


def wrapped(name: str = "net") -> Any:
    return ait.Module(torch.nn.Linear(2, 2).eval(), name)


def test_a_second_thread_waits_and_both_are_whole() -> None:
    model = wrapped()
    second: list[TuneReport] = []
    other = threading.Thread(target=lambda: second.append(ait.tune(model, SAMPLES, dry_run=True)))
    overlapped: list[bool] = []

    def func(x: torch.Tensor) -> Any:
        if not other.ident:
            other.start()
        other.join(0.05)
        overlapped.append(bool(second))
        return model(x)

    first = ait.tune(func, SAMPLES, dry_run=True)
    other.join()
    assert not any(overlapped)
    assert [r.module("net").status for r in (first, *second)] == ["original kept", "original kept"]
    assert all(len(r.module("net").graphs) == 1 for r in (first, *second))


def test_a_call_inside_of_the_function_is_refused_at_once() -> None:
    model = wrapped()

    def func(x: torch.Tensor) -> Any:
        model(x)
        ait.tune(model, SAMPLES, dry_run=True)

    with pytest.raises(AITuneUserInputError, match="inside the function"):
        ait.tune(func, SAMPLES, dry_run=True)
    assert model.state is ModuleState.INIT
    assert ait.tune(model, SAMPLES, dry_run=True).module("net").graphs


def test_the_hold_is_given_back_after_an_error() -> None:
    registry = ModuleRegistry()
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt), registry.one_run_at_a_time():
            raise KeyboardInterrupt


def test_a_module_whose_state_changes_meanwhile_is_reported() -> None:
    model = wrapped()

    def func(x: torch.Tensor) -> Any:
        model(x)
        model.enable_passthrough(force=True)

    part = ait.tune(func, SAMPLES, dry_run=True).module("net")
    assert part.status == "failed"
    assert "passthrough" in str(part.reason)


def test_modules_of_one_name_keep_their_own_graphs() -> None:
    first, second = wrapped(), wrapped()

    def func(x: torch.Tensor) -> Any:
        second(first(x))
        second(x.double().float().unsqueeze(0))

    report = ait.tune(func, SAMPLES, dry_run=True)
    assert [(part.name, len(part.graphs)) for part in report.modules] == [("net (older 1)", 1), ("net", 2)]


@pytest.mark.parametrize("kind", ["module", "method", "function", "wrapped"])
def test_a_function_that_does_not_call_what_is_wrapped(kind: str) -> None:
    used, unused = torch.nn.Linear(2, 2).eval(), wrapped()
    kept = ait.Module(torch.nn.Identity(), "kept") if kind == "wrapped" else None
    func = {"module": used, "method": used.forward, "function": partial(torch.nn.functional.relu), "wrapped": kept}[
        kind
    ]
    report = ait.tune(func, SAMPLES, dry_run=True)
    assert unused.state is ModuleState.INIT
    said = str(report.module("net").reason)
    assert "never called" in said
    assert ("a Linear that is not wrapped" in said) == (kind in ("module", "method"))
