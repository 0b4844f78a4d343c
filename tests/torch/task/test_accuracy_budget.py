import math

import pytest
import torch

from aitune.exceptions import AITuneUserInputError
from aitune.torch.task.accuracy_budget import AccuracyBudget


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({}, "sets no limit"),
        ({"max_relative_error": -0.1}, "max_relative_error"),
        ({"max_relative_error": math.nan}, "max_relative_error"),
        ({"max_relative_error": math.inf}, "max_relative_error"),
        ({"max_relative_error": "0.1"}, "max_relative_error"),
        ({"max_relative_error": True}, "max_relative_error"),
        ({"min_cosine": 1.5}, "min_cosine"),
        ({"metric": lambda *_: 1.0}, "min_metric is missing"),
        ({"max_relative_error": 0.1, "min_metric": 0.5}, "metric is missing"),
        ({"metric": 3, "min_metric": 0.5}, "must be callable"),
    ],
)
def test_limits_are_validated(arguments, said):
    with pytest.raises(AITuneUserInputError, match=said):
        AccuracyBudget(**arguments)


def test_a_metric_gets_outputs_and_samples_and_may_return_a_tensor():
    budget = AccuracyBudget(metric=lambda *lists: torch.tensor(float(sum(map(len, lists)))), min_metric=0)
    assert budget.measure([1, 2], [3, 4], [5, 6]) == 6.0


@pytest.mark.parametrize("returned", [math.nan, math.inf, 10**400, torch.zeros(3), None, "high"])
def test_a_metric_that_is_no_number_is_an_error(returned):
    budget = AccuracyBudget(metric=lambda *_: returned, min_metric=0)
    with pytest.raises(AITuneUserInputError, match="the metric of the AccuracyBudget returned"):
        budget.measure([], [], [])


def test_a_metric_that_raises_is_an_error_with_its_cause():
    def metric(*_):
        raise ZeroDivisionError("no samples")

    with pytest.raises(AITuneUserInputError, match="raised ZeroDivisionError: no samples") as caught:
        AccuracyBudget(metric=metric, min_metric=0).measure([], [], [])
    assert isinstance(caught.value.__cause__, ZeroDivisionError)


def test_measuring_without_a_metric_is_an_error():
    with pytest.raises(AITuneUserInputError, match="no metric"):
        AccuracyBudget(max_relative_error=0.1).measure([], [], [])
