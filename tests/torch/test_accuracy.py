"""Accuracy in whole runs: a budget, a user's metric, a user's own calls."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tuning_models import HurryBackend, SleepyNet, samples

import aitune.torch as ait
from aitune.exceptions import AITuneUserInputError
from aitune.testing.fakes import FakeBackend
from aitune.torch.report.tune_report import TuneReport


def rounded(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.bfloat16().to(tensor.dtype)


def tune(**options: Any) -> TuneReport:
    model = ait.Module(SleepyNet().eval(), "net")
    lossy = HurryBackend("lossy", rounded, is_exact=False)
    strategy = ait.MaxThroughputStrategy([FakeBackend("exact"), lossy])
    return ait.tune(model, samples(), batch_sizes=[1, 4], strategy=strategy, **options)


def outcome(report: TuneReport, key: str) -> Any:
    return next(found for found in report.module("net").graphs[0].outcomes if found.key == key)


def share_of_signs(references: Any, candidates: Any, calls: Any) -> float:
    pairs = list(zip(references, candidates, strict=True))
    assert len(calls) == len(pairs)
    return float(torch.cat([((a["y"] > 0) == (b["y"] > 0)).flatten() for a, b in pairs]).double().mean())


def test_a_lossy_candidate_within_the_budget_wins_and_its_figures_are_in_the_report() -> None:
    budget = ait.AccuracyBudget(max_relative_error=0.02, metric=share_of_signs, min_metric=0.9)
    report = tune(accuracy_budget=budget)
    assert report.winner("net") == outcome(report, "Fake-lossy")
    assert outcome(report, "Fake-lossy").agreement.metric >= 0.9
    assert outcome(report, "Fake-exact").agreement.metric is None
    front = {point.key: point for point in report.front("net")}
    assert not front["Fake-lossy"].is_beaten
    assert 1e-4 < front["Fake-lossy"].relative_error < 0.02
    assert "speed and accuracy" in report.table()
    back = TuneReport.from_json(report.to_json())
    assert outcome(back, "Fake-lossy").agreement == outcome(report, "Fake-lossy").agreement
    assert report.settings["accuracy_budget"]["min_metric"] == 0.9
    assert report.module("net").graphs[0].reference_seconds > 0


BUDGETS = [
    None,
    ait.AccuracyBudget(max_relative_error=1e-4),
    ait.AccuracyBudget(metric=lambda *_: 0.8, min_metric=0.9),
]


@pytest.mark.parametrize("budget", BUDGETS)
def test_a_lossy_candidate_beyond_the_budget_is_rejected(budget: Any) -> None:
    rejected = outcome(tune(accuracy_budget=budget), "Fake-lossy")
    assert rejected.status == "rejected"
    assert rejected.agreement.rejection.check == ("metric" if budget and budget.metric else "value")


def raises(*_: Any) -> float:
    raise ZeroDivisionError("no labels")


@pytest.mark.parametrize(
    ("metric", "said"),
    [
        (raises, "raised ZeroDivisionError: no labels; it is called as metric"),
        (lambda *_: float("nan"), "returned nan; expected a finite number"),
        (lambda *_: torch.ones(3), "expected one number"),
        (lambda *_: None, "returned None; expected one number"),
        (lambda references, candidates: 1.0, "takes 2 positional arguments but 3 were given"),
    ],
)
def test_a_metric_that_does_not_work_is_an_error_before_anything_is_built(metric: Any, said: str) -> None:
    built: list[str] = []

    class Watched(HurryBackend):
        def _build(self, *args: Any) -> Any:
            built.append(self.label)
            return super()._build(*args)

    model = ait.Module(SleepyNet().eval(), "net")
    with pytest.raises(AITuneUserInputError, match=said):
        ait.tune(
            model, samples(), batch_sizes=[1, 4], strategy=ait.MaxThroughputStrategy([Watched()]),
            accuracy_budget=ait.AccuracyBudget(metric=metric, min_metric=0.5), ignore_failing_modules=False,
        )  # fmt: skip
    assert built == []


def test_a_metric_that_the_original_itself_does_not_reach_is_warned_of() -> None:
    report = tune(accuracy_budget=ait.AccuracyBudget(metric=lambda *_: 0.8, min_metric=0.9))
    (warning,) = report.module("net").graphs[0].warnings
    assert warning.startswith("the metric of the original module against itself is 0.8, less than the 0.9")


class HoldsItself:
    """As a metric or a factory does that is part of a pipeline which holds it."""

    def __init__(self, answer: Any) -> None:
        self.answer = answer
        self.pipeline = {"parts": [self]}

    def __call__(self, *given: Any) -> Any:
        return self.answer(*given)


def test_a_metric_and_a_factory_that_hold_themselves_are_named_in_the_settings() -> None:
    report = tune(
        accuracy_budget=ait.AccuracyBudget(metric=HoldsItself(lambda *_: 1.0), min_metric=0.9),
        input_factory=HoldsItself(lambda sizes: torch.rand(sizes["batch0"], 4)),
    )
    graph, named = report.module("net").graphs[0], f"{HoldsItself.__module__}.HoldsItself"
    assert report.settings["accuracy_budget"]["metric"] == named
    assert graph.strategy["input_factory"] == named
    assert graph.warnings == ()


def test_calls_of_a_factory_reach_the_candidates() -> None:
    asked: list[dict[str, int]] = []

    def factory(sizes: dict[str, int]) -> dict[str, torch.Tensor]:
        asked.append(sizes)
        return {"x": torch.full((sizes["batch0"], 4), 3.0)}

    seen: list[float] = []

    def look(tensor: torch.Tensor) -> torch.Tensor:
        seen.append(len(tensor))
        return tensor

    model = ait.Module(SleepyNet().eval(), "net")
    strategy = ait.MaxThroughputStrategy([HurryBackend("watched", look)])
    report = ait.tune(model, samples(), batch_sizes=[1, 4], strategy=strategy, input_factory=factory)
    assert asked
    assert {sizes["batch0"] for sizes in asked} <= set(seen)
    assert report.module("net").graphs[0].strategy["input_factory"].endswith("factory")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"accuracy_budget": 0.1}, "accuracy_budget must be an AccuracyBudget, got 0.1"),
        ({"input_factory": 3}, "input_factory must be callable as input_factory"),
        ({"input_factory": lambda sizes: torch.rand(1, 1)}, "expected .* for these sizes"),
        ({"input_factory": lambda sizes: 1 / 0}, "raised ZeroDivisionError"),
    ],
)
def test_arguments_that_do_not_work_are_errors(options: Any, said: str) -> None:
    with pytest.raises(AITuneUserInputError, match=said):
        tune(**options, ignore_failing_modules=False)


def test_a_strategy_has_its_own_budget_and_factory() -> None:
    with pytest.raises(AITuneUserInputError, match="AccuracyBudget"):
        ait.MaxThroughputStrategy(accuracy_budget=0.1)
    asked: list[Any] = []

    def factory(sizes: dict[str, int]) -> torch.Tensor:
        asked.append(sizes)
        return torch.ones(sizes["batch0"], 4)

    model = ait.Module(SleepyNet().eval(), "net")
    ait.tune(
        model,
        samples(),
        batch_sizes=[1, 4],
        strategy=ait.MaxThroughputStrategy([HurryBackend()], input_factory=factory),
    )
    assert asked
