"""Modules and graphs that cannot be tuned: left as they were, named in the report, or raised when asked for."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tuning_models import SleepyNet, cache_files, hurry, samples, wrapped

import aitune.torch as ait
from aitune.exceptions import AITuneError, AITuneUserInputError
from aitune.testing.fakes import FakeBackend
from aitune.torch.module.wrapper_module import ModuleState


def test_a_failing_module_is_left_and_the_rest_goes_on() -> None:
    bad, good = wrapped("bad"), wrapped("good")
    bad.strategy = ait.OneBackendStrategy(FakeBackend("broken", fails_at="build"))

    def both(x: torch.Tensor) -> None:
        bad(x)
        good(x)

    report = ait.tune(both, samples(), batch_sizes=[1, 8], strategy=hurry())
    assert report.module("bad").status == "failed"
    assert "broken fails at build on purpose" in str(report.module("bad").reason)
    assert report.module("good").status == "tuned"
    assert bad.state is ModuleState.INIT


def test_its_error_is_raised_when_asked_for_and_all_modules_are_as_before() -> None:
    good, bad = wrapped("good"), wrapped("bad")
    bad.strategy = ait.OneBackendStrategy(FakeBackend("broken", fails_at="build"))

    def both(x: torch.Tensor) -> None:
        good(x)
        bad(x)

    with pytest.raises(AITuneError, match="broken fails at build on purpose"):
        ait.tune(both, samples(), batch_sizes=[1, 8], strategy=hurry(), ignore_failing_modules=False)
    assert (good.state, bad.state) == (ModuleState.INIT, ModuleState.INIT)
    assert cache_files() == []


def test_a_model_that_fails_while_tuned_is_the_users_error() -> None:
    class Once(torch.nn.Module):
        calls = 0

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            type(self).calls += 1
            if type(self).calls > 4:
                raise RuntimeError("worn out")
            return x

    model = ait.Module(Once().eval(), "once")
    with pytest.raises(AITuneUserInputError, match="worn out"):
        ait.tune(model, samples(2), batch_sizes=[1, 2], strategy=hurry(), ignore_failing_modules=False)


def test_when_tuning_again_fails_what_was_tuned_serves_on() -> None:
    model = wrapped()
    ait.tune(model, samples(), batch_sizes=[1, 8], strategy=hurry())
    served = model.module
    broken = ait.OneBackendStrategy(FakeBackend("broken", fails_at="build"))
    report = ait.tune(model, samples(), batch_sizes=[1, 4], strategy=broken, retune=True)
    assert report.module("net").status == "failed"
    assert (model.state, model.module) == (ModuleState.TUNED, served)
    with torch.no_grad():
        model(torch.ones(8, 4))
    assert model.stats().served == {"graph0": 1}


class Fickle(SleepyNet):
    """With a scale it answers one row with a dict, and more with a tensor."""

    def forward(self, x: torch.Tensor, scale: torch.Tensor | None = None) -> Any:
        answer = super().forward(x, scale)
        return answer["y"] if scale is not None and len(x) > 1 else answer


@pytest.mark.parametrize("alone", [False, True], ids=["beside another", "alone"])
def test_a_graph_that_no_strategy_could_begin_with_is_in_the_report(alone: bool) -> None:
    model = ait.Module(Fickle().eval(), "fickle")

    def both(x: torch.Tensor) -> None:
        model(x, scale=x)
        if not alone:
            model(x)

    report = ait.tune(both, samples(), batch_sizes=[1, 2], strategy=hurry())
    graphs = report.module("fickle").graphs
    assert [graph.graph for graph in graphs] == (["graph0"] if alone else ["graph0", "graph1"])
    assert (graphs[0].winner, graphs[0].outcomes) == (None, ())
    assert "changes its kind from call to call" in graphs[0].reason
    assert report.module("fickle").status == ("failed" if alone else "tuned")
    assert type(report).from_json(report.to_json()) == report
    assert report.summary().count("changes its kind from call to call") == 1
