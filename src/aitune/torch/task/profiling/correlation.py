"""How much less calls tell that follow each other: their times go up and down together."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from aitune.torch.task.paired.signed_rank import student_quantile
from aitune.torch.task.profiling.statistics import MEDIAN_CONFIDENCE, median_interval

_FEWEST_FOR_CORRELATION = 10
_ROUNDS = 3
"""What is subtracted for the median that was estimated from the same values depends on the result; it settles soon."""


def correlated_median_interval(values: Sequence[float], confidence: float = MEDIAN_CONFIDENCE) -> tuple[float, float]:
    """Return an interval of the median of values that depend on the ones before them: two order statistics.

    The number of values below the median has a variance of ``f * n / 4`` instead of ``n / 4``; ``f`` comes from the
    autocorrelation of being above or below, summed as far as it is above its own noise. Without such correlation this
    is :func:`median_interval`. On simulated skewed times whose autocorrelation is at most one half it covers the median
    as often as it says, within 2 points, from 50 values on; drifts that last as long as the measurement escape it.

    Args:
        values: At least one value, in the order in which they were measured.
        confidence: Wanted probability; few values give the smallest and the largest one, which may reach less.
    """
    count = len(values)
    inflation = variance_inflation(values)
    if inflation <= 1.0:
        return median_interval(values, confidence)
    independent = max(int(count / inflation), 2)
    reach = student_quantile(independent - 1, 0.5 + confidence / 2.0) * math.sqrt(count * inflation) / 2.0
    rank = max(math.floor((count + 1) / 2.0 - reach), 1)
    ordered = sorted(values)
    return ordered[rank - 1], ordered[-rank]


def variance_inflation(values: Sequence[float]) -> float:
    """Return how many correlated values tell as much about the median as one independent value; 1 for independent ones.

    Args:
        values: The values in order.
    """
    count = len(values)
    if count < _FEWEST_FOR_CORRELATION:
        return 1.0
    median = statistics.median(values)
    signs = [(value > median) - (value < median) for value in values]
    noise = 0.5 / math.sqrt(count)
    correlations = []
    for lag in range(1, count // 3):
        correlation = sum(a * b for a, b in zip(signs, signs[lag:], strict=False)) / (count - lag)
        # Noise alone rarely reaches the first bound; once there is correlation it ends below the second.
        if correlation < (2.0 * noise if lag == 1 else noise):
            break
        correlations.append(correlation)
    inflation = 1.0
    for _ in range(_ROUNDS):
        inflation = 1.0 + 2.0 * sum(correlation + inflation / count for correlation in correlations)
        inflation = min(inflation, count / 4.0)
    return inflation
