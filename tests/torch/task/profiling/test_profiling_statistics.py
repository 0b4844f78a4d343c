import math
import random
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from aitune.torch.task.profiling.statistics import (
    calls_to_bound,
    coefficient_of_variation,
    median_interval,
    percentile,
    percentile_upper,
    relative_half_width,
)

times = st.lists(st.floats(1e-6, 1e3), min_size=1, max_size=60)


@given(times, st.floats(0.0, 1.0))
def test_percentile_agrees_with_scipy(values, share):
    assert percentile(values, share) == pytest.approx(float(stats.scoreatpercentile(values, 100 * share)), rel=1e-9)


def test_percentile_of_a_hand_made_list():
    assert percentile([4.0, 1.0, 3.0, 2.0], 0.5) == 2.5
    assert percentile([10.0], 0.99) == 10.0
    assert percentile([0.0, 10.0], 0.9) == pytest.approx(9.0)


@pytest.mark.parametrize("count", [6, 7, 10, 25, 100, 1000, 5000])
def test_median_interval_takes_the_innermost_order_statistics_that_reach_the_confidence(count):
    low, high = median_interval(list(range(1, count + 1)), 0.95)
    assert high == count + 1 - low
    reached = 1 - 2 * stats.binom.cdf(low - 1, count, 0.5)
    assert reached >= 0.95
    assert 1 - 2 * stats.binom.cdf(low, count, 0.5) < 0.95


@pytest.mark.parametrize("count", [1, 2, 5])
def test_median_interval_of_too_few_values_is_their_range(count):
    assert median_interval([float(v) for v in range(count)], 0.95) == (0.0, count - 1.0)


@given(times)
def test_median_interval_encloses_the_median(values):
    low, high = median_interval(values)
    assert low <= statistics.median(values) <= high


def test_median_interval_covers_the_median_of_skewed_times():
    draw = random.Random(7)
    true_median = math.log(2.0)
    hits = 0
    for _ in range(2000):
        low, high = median_interval([draw.expovariate(1.0) for _ in range(40)], 0.95)
        hits += low <= true_median <= high
    # The exact level of the 14th and the 27th of 40 is 0.9615.
    assert 0.95 <= hits / 2000 <= 0.975


def test_relative_half_width_is_half_the_interval_over_the_median():
    values = [float(v) for v in range(1, 12)]
    low, high = median_interval(values)
    assert relative_half_width(values) == pytest.approx((high - low) / 2 / 6.0)
    assert relative_half_width([5.0] * 20) == 0.0


def test_coefficient_of_variation_of_hand_made_values():
    assert coefficient_of_variation([3.0]) == 0.0
    assert coefficient_of_variation([1.0, 3.0]) == pytest.approx(math.sqrt(2.0) / 2.0)


@pytest.mark.parametrize("share", [0.5, 0.9, 0.99])
@pytest.mark.parametrize("count", [10, 50, 367, 368, 1000, 5000])
def test_the_upper_end_of_a_percentile_is_the_lowest_order_statistic_that_reaches_the_confidence(count, share):
    rank = percentile_upper(list(range(1, count + 1)), share, 0.95)
    # The rank-th smallest is below the percentile only when fewer than that many values are.
    reached = [stats.binom.cdf(each - 1, count, share) for each in (rank - 1, rank)]
    assert reached[0] < 0.975
    assert reached[1] >= 0.975 or rank == count


@given(times, st.sampled_from([0.5, 0.9, 0.99]))
def test_the_upper_end_of_a_percentile_is_not_below_it(values, share):
    assert percentile_upper(values, share) >= percentile(values, share) * (1.0 - 1e-12)
    assert percentile_upper(values, 0.5) == median_interval(values)[1]


@pytest.mark.parametrize(("share", "count"), [(0.99, 368), (0.9, 36), (0.5, 6)])
def test_as_many_calls_as_bound_a_percentile(share: float, count: int) -> None:
    assert calls_to_bound(share) == count
    assert 1.0 - share**count >= 0.975 > 1.0 - share ** (count - 1)
