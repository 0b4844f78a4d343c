import itertools
import math
import random
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from aitune.torch.task.paired.signed_rank import (
    few_differences_interval,
    robust_deviation,
    signed_rank_distribution,
    signed_rank_interval,
    student_quantile,
    walsh_averages,
)

differences = st.lists(st.floats(-1.0, 1.0), min_size=1, max_size=30)


@pytest.mark.parametrize("count", [1, 2, 3, 6, 10])
def test_distribution_counts_subsets_of_ranks(count):
    sums = [sum(subset) for size in range(count + 1) for subset in itertools.combinations(range(1, count + 1), size)]
    expected = [sums.count(total) / 2**count for total in range(count * (count + 1) // 2 + 1)]
    assert signed_rank_distribution(count) == pytest.approx(expected, abs=1e-15)


@pytest.mark.parametrize("count", [9, 14, 40])
def test_tail_probabilities_agree_with_scipys_exact_test(count):
    draw = random.Random(count)
    values = [draw.gauss(0.3, 1.0) for _ in range(count)]
    result = stats.wilcoxon(values, alternative="less", method="exact")
    below = sum(signed_rank_distribution(count)[: int(result.statistic) + 1])
    assert below == pytest.approx(float(result.pvalue), rel=1e-9)


@pytest.mark.parametrize("count", [9, 10, 14, 20, 28])
def test_interval_holds_exactly_the_centres_that_the_exact_test_does_not_reject(count):
    draw = random.Random(100 + count)
    values = [draw.gauss(0.0, 1.0) for _ in range(count)]
    interval = signed_rank_interval(values, 0.005)
    nudge = 1e-9

    def p_value(centre):
        return float(stats.wilcoxon([value - centre for value in values], method="exact").pvalue)

    assert p_value(interval.low + nudge) > 0.005
    assert p_value(interval.low - nudge) <= 0.005
    assert p_value(interval.high - nudge) > 0.005
    assert p_value(interval.high + nudge) <= 0.005


@pytest.mark.parametrize("count", [9, 40, 112])
def test_stated_confidence_is_reached_and_not_below_what_was_asked(count):
    interval = signed_rank_interval([float(n) for n in range(count)], 0.005)
    assert 0.995 <= interval.confidence < 1.0


def test_too_few_differences_have_no_interval():
    assert signed_rank_interval([0.1 * n for n in range(8)], 0.005) is None
    assert signed_rank_interval([0.1 * n for n in range(9)], 0.005) is not None
    assert signed_rank_interval([], 0.5) is None


def test_hodges_lehmann_estimate_by_hand():
    assert walsh_averages([1.0, 2.0, 6.0]) == [1.0, 1.5, 2.0, 3.5, 4.0, 6.0]
    values = [1.0, 2.0, 6.0, 7.0, 20.0, 3.0, 4.0, 5.0, 8.0]
    assert signed_rank_interval(values, 0.005).estimate == statistics.median(walsh_averages(values))


@given(st.lists(st.floats(-1.0, 1.0), min_size=9, max_size=30), st.floats(-1.0, 1.0))
def test_interval_moves_with_the_differences_and_turns_with_their_sign(values, shift):
    plain = signed_rank_interval(values, 0.005)
    moved = signed_rank_interval([value + shift for value in values], 0.005)
    turned = signed_rank_interval([-value for value in values], 0.005)
    assert plain.low <= plain.estimate <= plain.high
    assert moved.estimate == pytest.approx(plain.estimate + shift, abs=1e-9)
    assert (moved.low, moved.high) == (
        pytest.approx(plain.low + shift, abs=1e-9),
        pytest.approx(plain.high + shift, abs=1e-9),
    )
    assert (turned.low, turned.high) == (pytest.approx(-plain.high, abs=1e-12), pytest.approx(-plain.low, abs=1e-12))


def test_coverage_on_heavy_tails_is_the_stated_confidence():
    draw = random.Random(5)
    trials, hits, stated = 1500, 0, 0.0
    for _ in range(trials):
        # The difference of two skewed times, with now and then a disturbance of either side.
        values = [draw.expovariate(20) - draw.expovariate(20) + draw.choice((0, 0, 0, 0.5, -0.5)) for _ in range(14)]
        interval = signed_rank_interval(values, 0.05)
        hits += interval.low <= 0.0 <= interval.high
        stated = interval.confidence
    assert stated - 0.02 <= hits / trials <= stated + 0.02


@given(differences)
def test_few_differences_interval_encloses_the_estimate_and_the_range(values):
    interval = few_differences_interval(values, 0.005)
    assert interval.low <= interval.estimate <= interval.high
    assert interval.low <= min(values) <= max(values) <= interval.high


@pytest.mark.parametrize(("count", "confidence"), [(1, 0.0), (2, 0.5), (3, 0.75), (4, 0.995)])
def test_few_differences_say_how_little_they_tell(count, confidence):
    assert few_differences_interval([0.1 * n for n in range(count)], 0.005).confidence == pytest.approx(confidence)


def test_one_to_three_differences_reach_as_far_as_a_noisy_machine_scatters():
    one, three = few_differences_interval([0.2], 0.005), few_differences_interval([0.3, 0.3, 1.1], 0.005)
    assert (one.low, one.high) == (pytest.approx(-0.25), pytest.approx(0.65))
    # The median of 0.3, 0.3, 0.3, 0.7, 0.7 and 1.1 is 0.5.
    assert three.low == pytest.approx(0.5 - 0.45 / math.sqrt(3))
    assert three.high == 1.1


def test_four_differences_get_students_interval_where_it_is_wider():
    values = [0.68, 0.70, 0.69, 0.71]
    interval = few_differences_interval(values, 0.005)
    low, high = stats.t.interval(0.995, 3, loc=statistics.fmean(values), scale=stats.sem(values))
    assert (interval.low, interval.high) == (pytest.approx(low), pytest.approx(high))
    # Many equal values with one outlier: the range reaches further than t does on the outlier's side.
    lopsided = [0.0] * 30 + [1.0]
    assert few_differences_interval(lopsided, 0.05).high == 1.0


@pytest.mark.parametrize("alpha", [0.02, 1e-6, 1e-12, 1e-300])
def test_the_ends_of_an_interval_stay_ratios_that_can_be_written(alpha):
    interval = few_differences_interval([-5.0, 0.0, 3.0, 8.0], alpha)
    assert 0.0 < math.exp(interval.low) < math.exp(interval.high) < math.inf


@pytest.mark.parametrize("degrees", [1, 2, 3, 4, 7, 8, 20, 31])
@pytest.mark.parametrize("probability", [0.6, 0.95, 0.9975])
def test_student_quantile_agrees_with_scipy(degrees, probability):
    assert student_quantile(degrees, probability) == pytest.approx(float(stats.t.ppf(probability, degrees)), rel=1e-9)


def test_robust_deviation_is_that_of_a_normal_and_ignores_outliers():
    draw = random.Random(1)
    values = [draw.gauss(3.0, 2.0) for _ in range(4000)]
    assert robust_deviation(values) == pytest.approx(2.0, rel=0.05)
    assert robust_deviation([1.0, 1.0, 1.0, 1.0, 99.0]) == 0.0
    assert math.isclose(robust_deviation([0.0, 1.0, 2.0]), 1.4826)
