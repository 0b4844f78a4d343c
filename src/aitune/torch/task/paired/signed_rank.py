"""Where the centre of paired differences lies: Hodges-Lehmann estimate with an exact Wilcoxon signed-rank interval.

It assumes that the differences are independent and symmetric about their centre, nothing else. Blocks in random order
within a pair make the differences of two equal candidates symmetric, whatever the machine does.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

_FEWEST_FOR_SPREAD = 4
"""Fewer differences than this say too little about their own spread."""

_ASSUMED_REACH = 3 * 0.15
"""What is assumed instead: three times the deviation of the logarithm of a ratio on a noisy machine."""

_LONGEST_REACH = math.log(1e9)
"""A longer one says no more, and the exponential of it may be more than a float holds."""


@dataclass(frozen=True)
class CentreInterval:
    """Estimate and interval of the centre of some differences.

    Args:
        estimate: Hodges-Lehmann estimate: the median of all pairwise means.
        low: Lower end.
        high: Upper end.
        confidence: Probability that the interval holds the centre; 0 when one difference is all there is.
    """

    estimate: float
    low: float
    high: float
    confidence: float


@lru_cache(maxsize=256)
def signed_rank_distribution(count: int) -> tuple[float, ...]:
    """Return the probabilities of the signed-rank sum of ``count`` differences without ties.

    Each rank is in the sum or not with probability one half, so the distribution is built rank by rank
    (Wilcoxon 1945; Hollander, Wolfe & Chicken, Nonparametric Statistical Methods, section 3.1).

    Args:
        count: Number of differences, at least 0.

    Returns:
        Probability of each sum from 0 to ``count * (count + 1) / 2``.
    """
    probabilities = [1.0]
    for rank in range(1, count + 1):
        without = [0.5 * p for p in probabilities] + [0.0] * rank
        for total, p in enumerate(probabilities):
            without[total + rank] += 0.5 * p
        probabilities = without
    return tuple(probabilities)


@lru_cache(maxsize=1024)
def _order_and_confidence(count: int, alpha: float) -> tuple[int, float] | None:
    below = 0.0
    order = 0
    for probability in signed_rank_distribution(count):
        if below + probability > alpha / 2.0:
            break
        below += probability
        order += 1
    return (order, 1.0 - 2.0 * below) if order else None


def signed_rank_interval(differences: Sequence[float], alpha: float) -> CentreInterval | None:
    """Return the exact interval of the centre (Hollander, Wolfe & Chicken, equation 3.35, after Tukey).

    Args:
        differences: Paired differences.
        alpha: Largest probability that the interval misses the centre, both sides together.

    Returns:
        The interval, or ``None`` when there are too few differences for this ``alpha``: it takes 9 for 0.005.
    """
    order_and_confidence = _order_and_confidence(len(differences), alpha)
    if order_and_confidence is None:
        return None
    order, confidence = order_and_confidence
    means = walsh_averages(differences)
    return CentreInterval(statistics.median(means), means[order - 1], means[-order], confidence)


def few_differences_interval(differences: Sequence[float], alpha: float) -> CentreInterval:
    """Return an interval from fewer differences than the exact one needs, as when single calls take seconds.

    With four or more it is the wider of two: Student's t (which assumes that the differences are near normal) and
    smallest to largest. With fewer it is the wider of smallest to largest and the reach of a noisy machine; the stated
    confidence is then that of smallest to largest alone, ``1 - 2 ** (1 - n)``, as the reach is only an assumption.

    Args:
        differences: At least one difference.
        alpha: Wanted probability of a miss.
    """
    count = len(differences)
    estimate = statistics.median(walsh_averages(differences))
    low, high = min(differences), max(differences)
    if count < _FEWEST_FOR_SPREAD:
        reach = _ASSUMED_REACH / math.sqrt(count)
        return CentreInterval(
            estimate, min(low, estimate - reach), max(high, estimate + reach), 1.0 - 2.0 ** (1 - count)
        )
    reach = student_quantile(count - 1, 1.0 - alpha / 2.0) * statistics.stdev(differences) / math.sqrt(count)
    reach = min(reach, _LONGEST_REACH)
    mean = statistics.fmean(differences)
    return CentreInterval(estimate, min(low, mean - reach), max(high, mean + reach), 1.0 - alpha)


def walsh_averages(differences: Sequence[float]) -> list[float]:
    """Return the means of all pairs of differences, each with itself too, smallest first.

    Args:
        differences: Paired differences.
    """
    count = len(differences)
    return sorted(0.5 * (differences[i] + differences[j]) for i in range(count) for j in range(i, count))


def robust_deviation(values: Sequence[float]) -> float:
    """Return the standard deviation as the median absolute deviation tells it (times 1.4826, exact for a normal).

    Args:
        values: At least one value.
    """
    centre = statistics.median(values)
    return 1.4826 * statistics.median(abs(value - centre) for value in values)


@lru_cache(maxsize=256)
def student_quantile(degrees: int, probability: float) -> float:
    """Return a quantile of Student's t distribution, found by bisection of the closed form of its distribution.

    Args:
        degrees: Degrees of freedom, at least 1.
        probability: Probability below the quantile, from 0.5 to below 1.
    """
    low, high = 0.0, 1.0
    while _student_probability(degrees, high) < probability:
        high *= 2.0
    for _ in range(100):
        middle = 0.5 * (low + high)
        if _student_probability(degrees, middle) < probability:
            low = middle
        else:
            high = middle
    return high


def _student_probability(degrees: int, value: float) -> float:
    # Abramowitz & Stegun, Handbook of Mathematical Functions, 26.7.3 (odd) and 26.7.4 (even).
    angle = math.atan(value / math.sqrt(degrees))
    sine, cosine = math.sin(angle), math.cos(angle)
    total, term = 0.0, (cosine if degrees % 2 else 1.0)
    for step in range(degrees % 2, degrees - 1, 2):
        total += term
        term *= cosine * cosine * (step + 1) / (step + 2)
    within = sine * total
    if degrees % 2:
        within = 2.0 / math.pi * (angle + within)
    return 0.5 + 0.5 * within
