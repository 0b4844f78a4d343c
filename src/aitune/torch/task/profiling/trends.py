"""What calls that follow each other show beside their time: that they get slower, or that memory is not given back."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Sequence

_FEWEST_TIMES = 12
_MOST_COMPARED = 100
_LEAST_CONCORDANCE = 0.7
_LEAST_SLOWING = 1.2

_QUARTERS = 4
_LEAST_GROWTH = 4 * 2**20
"""Bytes: allocators take and keep some memory without losing any."""


def slowing(times: Sequence[float]) -> float | None:
    """Return how many times as long the last calls take as the first, when calls get slower and slower.

    Kendall's rank correlation of the times with their order has to be high (Kendall, Biometrika 30, 1938): a machine
    that becomes slower once gives at most one half.

    Args:
        times: Times of calls, in order.

    Returns:
        Median of the last quarter over that of the first; ``None`` when there is no such trend, or too few times.
    """
    if len(times) < _FEWEST_TIMES:
        return None
    quarter = len(times) // _QUARTERS
    factor = statistics.median(times[-quarter:]) / statistics.median(times[:quarter])
    if factor < _LEAST_SLOWING or _concordance(times[:: len(times) // _MOST_COMPARED + 1]) < _LEAST_CONCORDANCE:
        return None
    return factor


def _concordance(values: Sequence[float]) -> float:
    """Return Kendall's tau of values with their order; ties count as neither."""
    count = len(values)
    score = sum((values[j] > values[i]) - (values[j] < values[i]) for i in range(count) for j in range(i + 1, count))
    return score / (count * (count - 1) / 2)


def leaked_bytes(readings: Sequence[int]) -> int | None:
    """Return how much memory was not given back, when it grows all the time.

    Args:
        readings: Memory of the process in bytes after each of some calls, in order.

    Returns:
        Growth from the first reading to the last; ``None`` when it does not grow in every quarter, or hardly.
    """
    if len(readings) < _FEWEST_TIMES:
        return None
    last = len(readings) - 1
    marks = [readings[last * quarter // _QUARTERS] for quarter in range(_QUARTERS + 1)]
    growth = marks[-1] - marks[0]
    # A cache that fills up grows less and less.
    least = growth / (2 * _QUARTERS)
    steady = all(later - earlier > least for earlier, later in itertools.pairwise(marks))
    return growth if steady and growth >= _LEAST_GROWTH else None
