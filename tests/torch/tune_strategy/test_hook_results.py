import math
from fractions import Fraction

import numpy as np
import pytest
import torch

from aitune.exceptions import AITuneUserInputError
from aitune.torch.backend.backend import Backend
from aitune.torch.tune_strategy.hook_results import (
    as_number,
    expect_flag,
    expect_kind,
    expect_texts,
    hook_name,
    why_not_positive,
)

NUMBERS = [
    2,
    2.0,
    Fraction(2),
    np.float64(2),
    np.float32(2),
    np.int64(2),
    np.uint8(2),
    np.array(2.0),
    torch.tensor(2.0),
    torch.tensor(2, dtype=torch.bfloat16),
    torch.tensor(2),
]
NO_NUMBERS = [
    True, False, np.True_, torch.tensor(True), None, "2", 2j, torch.tensor(2j), [2.0], torch.ones(1), np.ones(1), int,
]  # fmt: skip


@pytest.mark.parametrize("value", NUMBERS, ids=lambda value: f"{type(value).__name__}")
def test_every_kind_of_real_number_becomes_a_float(value):
    assert type(as_number(value)) is float
    assert as_number(value) == 2.0
    assert why_not_positive(value) is None


@pytest.mark.parametrize("value", NO_NUMBERS, ids=repr)
def test_what_is_no_real_number(value):
    assert as_number(value) is None
    assert "expected a finite number above 0" in why_not_positive(value)


@pytest.mark.parametrize(
    "value", [0, 0.0, -1, math.nan, math.inf, -math.inf, np.float32("nan"), torch.tensor(0), 10**400, -(10**400)]
)
def test_numbers_that_cannot_be_compared(value):
    assert as_number(value) is not None
    assert why_not_positive(value).startswith("is ")


@pytest.mark.parametrize("value", [True, np.True_, torch.tensor(True), np.array(True)], ids=repr)
def test_a_truth_value(value):
    assert expect_flag(value, "Mine._is_better") is True


@pytest.mark.parametrize("value", [None, 1, 0, "yes", 0.5, torch.tensor(1), torch.tensor([True, False])], ids=repr)
def test_what_is_no_truth_value(value):
    with pytest.raises(AITuneUserInputError, match=r"Mine\._is_better returned .*; expected True or False"):
        expect_flag(value, "Mine._is_better")


def test_a_kind_is_asked_for_by_class():
    assert expect_kind("text", str, "Mine._fmt", "a str") == "text"
    with pytest.raises(AITuneUserInputError, match=r"Mine\._tune returned None; expected a backend"):
        expect_kind(None, Backend, "Mine._tune", "a backend")
    with pytest.raises(AITuneUserInputError, match="expected an instance, not the class int: a str"):
        expect_kind(int, str, "Mine._fmt", "a str")


@pytest.mark.parametrize("value", ["text", None, [1], {"a": "b"}])
def test_what_is_no_list_of_texts(value):
    with pytest.raises(AITuneUserInputError, match="expected a list of str"):
        expect_texts(value, "Mine._describe_parts")


def test_a_hook_is_called_by_its_class():
    class Mine:
        pass

    assert hook_name(Mine(), "_measure") == "Mine._measure"
