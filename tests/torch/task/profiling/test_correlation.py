import math
import random

import pytest

from aitune.torch.task.profiling.correlation import correlated_median_interval, variance_inflation
from aitune.torch.task.profiling.statistics import median_interval


def series(count, correlation, draw):
    """Skewed times with median 1, each like the one before."""
    level, times = draw.gauss(0.0, 1.0), []
    for _ in range(count):
        times.append(math.exp(0.3 * level))
        level = correlation * level + math.sqrt(1.0 - correlation**2) * draw.gauss(0.0, 1.0)
    return times


@pytest.mark.parametrize(("count", "correlation"), [(60, 0.0), (60, 0.5), (200, 0.5)])
def test_the_interval_covers_the_median_as_often_as_it_says(count, correlation):
    draw, trials = random.Random(3), 1500
    intervals = [correlated_median_interval(series(count, correlation, draw)) for _ in range(trials)]
    hits = sum(low <= 1.0 <= high for low, high in intervals)
    # Order statistics come in steps: the level that is reached is up to 2 points above the one that was asked for.
    assert 0.93 <= hits / trials <= 0.98


def test_without_allowing_for_correlation_it_would_not():
    draw = random.Random(3)
    hits = sum(low <= 1.0 <= high for low, high in (median_interval(series(200, 0.5, draw)) for _ in range(300)))
    assert hits / 300 < 0.9


def test_the_inflation_of_a_known_process():
    draw = random.Random(0)
    # Signs of a Gaussian process agree by 2 / pi * asin(correlation); 1 + 2 * their sum is 2.53 for one half.
    exact = 1.0 + 2.0 * sum(2.0 / math.pi * math.asin(0.5**lag) for lag in range(1, 30))
    found = [variance_inflation(series(2000, 0.5, draw)) for _ in range(10)]
    assert sum(found) / 10 == pytest.approx(exact, rel=0.15)


def test_few_or_equal_values():
    assert correlated_median_interval([2.0]) == (2.0, 2.0)
    assert correlated_median_interval([3.0, 1.0, 2.0]) == (1.0, 3.0)
    assert correlated_median_interval([1.0] * 50) == (1.0, 1.0)


def test_a_drift_through_all_values_gives_the_whole_range():
    values = [1.0 + 0.01 * n for n in range(40)]
    low, high = correlated_median_interval(values)
    assert low <= 1.05
    assert high >= 1.34
