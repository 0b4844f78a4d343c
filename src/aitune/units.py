"""What each metric is measured in, which way is better, and how it is printed."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from aitune.exceptions import AITuneUserInputError

MISSING = "-"
"""Printed where there is no value."""


@dataclass(frozen=True)
class Metric:
    """One quantity that is measured or derived.

    Args:
        name: Name in the code and in reports.
        unit: Unit as it is printed; empty for a plain number.
        higher_is_better: Which way is better; ``None`` where neither is.
        value_format: ``format`` specification of a finite value.
        use_binary_prefixes: Whether large values are scaled by powers of 1024 (Ki, Mi, Gi, Ti).
    """

    name: str
    unit: str
    higher_is_better: bool | None
    value_format: str
    use_binary_prefixes: bool = False

    def number(self, value: float | None) -> str:
        """Print a value without its unit.

        Args:
            value: The value in the metric's unit; ``None`` where it is not known.
        """
        if value is None or math.isnan(value):
            return MISSING
        if math.isinf(value):
            return "inf" if value > 0 else "-inf"
        return format(value, self.value_format)

    def format(self, value: float | None) -> str:
        """Print a value with its unit, such as ``"12.3 s"``; see :meth:`number`."""
        if self.use_binary_prefixes and value is not None and math.isfinite(value):
            return _binary_size(value, self.unit)
        text = self.number(value)
        return text if text == MISSING or not self.unit else f"{text} {self.unit}"

    def is_better(self, value: float, other: float) -> bool:
        """Whether ``value`` beats ``other``; NaN beats nothing, and every number beats NaN.

        Args:
            value: The value that is judged.
            other: The value that it is judged against.

        Raises:
            AITuneUserInputError: Neither way is better for this metric.
        """
        if self.higher_is_better is None:
            raise AITuneUserInputError(f"metric {self.name!r} has no better way; compare another metric")
        if math.isnan(value):
            return False
        if math.isnan(other):
            return True
        return value > other if self.higher_is_better else value < other


def _binary_size(value: float, unit: str) -> str:
    prefixes = ("", "Ki", "Mi", "Gi", "Ti")
    power = 0
    while abs(value) >= 1024 and power < len(prefixes) - 1:
        value, power = value / 1024, power + 1
    return f"{value:.0f} {unit}" if power == 0 else f"{value:.1f} {prefixes[power]}{unit}"


METRICS: Mapping[str, Metric] = MappingProxyType(
    {
        metric.name: metric
        for metric in (
            Metric("throughput", "samples/s", True, ",.1f"),
            Metric("latency", "ms", False, ".3f"),
            Metric("duration", "s", False, ".1f"),
            Metric("speedup", "x", True, ".2f"),
            Metric("relative_error", "", False, ".1e"),
            Metric("cosine", "", True, ".6f"),
            Metric("size", "B", False, ".0f", use_binary_prefixes=True),
            Metric("batch_size", "samples", None, ".0f"),
        )
    }
)
"""Every metric by name."""


def get_metric(name: str) -> Metric:
    """Return the metric of that name.

    Args:
        name: Name such as ``"throughput"``.

    Raises:
        AITuneUserInputError: There is no such metric.
    """
    try:
        return METRICS[name]
    except KeyError as error:
        raise AITuneUserInputError(f"no metric is named {name!r}; metrics are {', '.join(METRICS)}") from error
