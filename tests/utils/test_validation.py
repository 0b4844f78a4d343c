from __future__ import annotations

from typing import Any

import numpy
import pytest

from aitune.exceptions import AITuneUserInputError
from aitune.utils.validation import (
    boolean,
    integer_at_least,
    number_at_least,
    one_of,
    positive_integer,
    positive_seconds,
)


@pytest.mark.parametrize("value", [0, -1, True, 1.0, "1", None, float("nan")])
def test_no_positive_integer(value: Any) -> None:
    with pytest.raises(AITuneUserInputError, match="count must be an integer of at least 1, got"):
        positive_integer(value, "count")


def test_integers() -> None:
    assert positive_integer(numpy.int64(3), "count") == 3
    assert integer_at_least(0, "count", 0) == 0


@pytest.mark.parametrize("value", [0, -1.0, True, "1", None, float("nan"), 10**400])
def test_no_positive_seconds(value: Any) -> None:
    with pytest.raises(AITuneUserInputError, match="budget must be a positive number of seconds, got"):
        positive_seconds(value, "budget")


@pytest.mark.parametrize("value", [-0.1, True, "1", None, float("nan"), float("inf"), 10**400])
def test_no_number_from_a_bound_on(value: Any) -> None:
    with pytest.raises(AITuneUserInputError, match="gain must be a finite number of at least 0, got"):
        number_at_least(value, "gain", 0.0)


def test_seconds() -> None:
    assert positive_seconds(2, "budget") == 2.0
    assert positive_seconds(float("inf"), "budget") == float("inf")


@pytest.mark.parametrize("value", [0, 1, "no", None])
def test_no_boolean(value: Any) -> None:
    with pytest.raises(AITuneUserInputError, match="flag must be True or False"):
        boolean(value, "flag")


@pytest.mark.parametrize("value", ["c", "", None, 1, True, ["a"], numpy.array(["a", "b"])])
def test_none_of_a_few(value: Any) -> None:
    with pytest.raises(AITuneUserInputError, match="mode must be one of 'a', 'b', got"):
        one_of(value, "mode", ("a", "b"))


def test_one_of_a_few() -> None:
    assert one_of("b", "mode", ("a", "b")) == "b"
    assert one_of(None, "mode", (None, "b")) is None
    with pytest.raises(AITuneUserInputError, match="got True"):
        one_of(True, "mode", (1, 2))
