"""Statistics of execution times: order statistics, which long tails do not move."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from functools import lru_cache

MEDIAN_CONFIDENCE = 0.95
"""Confidence of the interval of a median, where there are at least six values; of other percentiles as well."""


def percentile(values: Sequence[float], share: float) -> float:
    """Return a percentile, linearly interpolated between the order statistics (Hyndman & Fan 1996, type 7).

    Args:
        values: At least one value, in any order.
        share: Share of the values below the result, 0 to 1.
    """
    ordered = sorted(values)
    position = share * (len(ordered) - 1)
    below = math.floor(position)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (position - below) * (ordered[above] - ordered[below])


def median_interval(values: Sequence[float], confidence: float = MEDIAN_CONFIDENCE) -> tuple[float, float]:
    """Return an interval of the median that assumes nothing of the distribution: two order statistics.

    The k-th smallest and the k-th largest of n values enclose the median with probability
    ``1 - 2 P(Binomial(n, 1/2) < k)`` (Conover, Practical Nonparametric Statistics, section 3.2). It holds for
    independent values; calls that follow each other are not quite that, which is why candidates are compared in blocks.

    Args:
        values: At least one value, in any order.
        confidence: Wanted probability; too few values give the smallest and the largest one, which reach less.
    """
    ordered = sorted(values)
    rank = _lower_rank(len(ordered), 0.5, confidence)
    return ordered[rank - 1], ordered[-rank]


def percentile_upper(values: Sequence[float], share: float, confidence: float = MEDIAN_CONFIDENCE) -> float:
    """Return the upper end of the interval of a percentile: an order statistic, as in :func:`median_interval`.

    Args:
        values: At least one value, in any order.
        share: Share of the values below the percentile, above 0 and below 1.
        confidence: Wanted probability of the interval of both sides; too few values give the largest one, which
            reaches less: 368 are needed for the 99th percentile at 95%.
    """
    return sorted(values)[-_lower_rank(len(values), 1.0 - share, confidence)]


def calls_to_bound(share: float, confidence: float = MEDIAN_CONFIDENCE) -> int:
    """Return how many values :func:`percentile_upper` needs, so that the largest one is above the percentile.

    Args:
        share: Share of the values below the percentile, above 0 and below 1.
        confidence: Wanted probability of the interval of both sides.
    """
    return math.ceil(math.log((1.0 - confidence) / 2.0) / math.log(share))


@lru_cache(maxsize=4096)
def _lower_rank(count: int, share: float, confidence: float) -> int:
    """Return the largest k, at least 1, such that the k-th smallest of the values is hardly above the percentile."""
    allowed = (1.0 - confidence) / 2.0
    log_below, log_above = math.log(share), math.log1p(-share)
    probability, rank = 0.0, 0
    while rank < (count + 1) // 2:
        # In logarithms, because the coefficients of a few thousand calls do not fit into a float.
        log_ways = math.lgamma(count + 1) - math.lgamma(rank + 1) - math.lgamma(count - rank + 1)
        probability += math.exp(log_ways + rank * log_below + (count - rank) * log_above)
        if probability > allowed:
            break
        rank += 1
    return max(rank, 1)


def relative_half_width(values: Sequence[float]) -> float:
    """Return half the width of the interval of the median over the median: 0.01 means known to within 1%.

    Args:
        values: At least one positive value.
    """
    low, high = median_interval(values)
    return (high - low) / (2.0 * statistics.median(values))


def coefficient_of_variation(values: Sequence[float]) -> float:
    """Return the standard deviation (n - 1) over the mean; 0 for a single value.

    Args:
        values: At least one positive value.
    """
    if len(values) < 2:
        return 0.0
    return statistics.stdev(values) / statistics.fmean(values)
