import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aitune.exceptions import AITuneUserInputError
from aitune.units import METRICS, MISSING, get_metric


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("throughput", 12345.67, "12,345.7 samples/s"),
        ("latency", 0.12345, "0.123 ms"),
        ("duration", 2.54, "2.5 s"),
        ("speedup", 1.5, "1.50 x"),
        ("relative_error", 1.234e-7, "1.2e-07"),
        ("size", 0, "0 B"),
        ("size", 1023, "1023 B"),
        ("size", 1536, "1.5 KiB"),
        ("size", 3 * 1024**3, "3.0 GiB"),
        ("size", 5000 * 1024**4, "5000.0 TiB"),
        ("throughput", None, MISSING),
        ("latency", math.nan, MISSING),
        ("latency", math.inf, "inf ms"),
        ("latency", -math.inf, "-inf ms"),
        ("size", math.inf, "inf B"),
    ],
)
def test_a_value_is_printed_with_its_unit(name: str, value: float | None, expected: str) -> None:
    assert get_metric(name).format(value) == expected


def test_each_metric_is_found_under_its_own_name() -> None:
    assert all(metric.name == name for name, metric in METRICS.items())


def test_an_unknown_metric_is_an_error_that_lists_the_known_ones() -> None:
    with pytest.raises(AITuneUserInputError, match=r"'speed'.*throughput"):
        get_metric("speed")


def test_the_better_way_of_each_metric() -> None:
    assert get_metric("throughput").is_better(2.0, 1.0)
    assert not get_metric("throughput").is_better(1.0, 2.0)
    assert get_metric("latency").is_better(1.0, 2.0)
    assert not get_metric("latency").is_better(2.0, 1.0)


def test_a_metric_without_a_better_way_refuses_to_compare() -> None:
    with pytest.raises(AITuneUserInputError, match="batch_size"):
        get_metric("batch_size").is_better(1, 2)


@given(st.sampled_from(["throughput", "latency"]), st.floats(), st.floats())
def test_better_is_asymmetric_and_nan_never_wins(name: str, left: float, right: float) -> None:
    metric = get_metric(name)
    assert not (metric.is_better(left, right) and metric.is_better(right, left))
    assert not metric.is_better(math.nan, right)
    if not math.isnan(left):
        assert metric.is_better(left, math.nan)
