"""What a profiling strategy learns of one backend."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

from aitune.exceptions import ProfilingError
from aitune.torch.backend.backend import Backend

BASELINE_KEY = "baseline"
"""Key of the original module in reports; a candidate that runs it with other options has its own."""


@dataclass
class BackendPerfResult:
    """Profiled metric and speedup result for a single backend.

    Args:
        backend_description: The backend, for people.
        metric: Its metric.
        baseline_metric: The original module's metric.
        speedup: How many times faster it is; above 1 is faster.
        passed: Whether it may replace the original module.
    """

    backend_description: str
    metric: float
    baseline_metric: float
    speedup: float
    passed: bool


@dataclass
class BackendProfilingResult(ABC):
    """Profiled backend result returned by profiling strategies.

    Args:
        selected_batch_size: Batch size that the metric holds for.
    """

    selected_batch_size: int

    @property
    @abstractmethod
    def metric(self) -> float:
        """Returns the scalar metric used to compare candidates."""

    @property
    def bounds(self) -> tuple[float, float]:
        """Interval that the metric is known to lie in; a result that knows none says the metric twice."""
        return self.metric, self.metric

    def to_json_dict(self, metric_label: str) -> dict[str, int | float]:
        """Returns fields stored in strategy_results for this backend.

        Args:
            metric_label: Name of the metric.
        """
        return {"selected_batch_size": self.selected_batch_size, metric_label: self.metric}


@dataclass
class _TuneCandidate:
    backend: Backend
    result: BackendProfilingResult


def require_usable(result: Any, metric_label: str) -> BackendProfilingResult:
    """Return a result whose metric can be compared.

    Args:
        result: What a ``_measure`` hook returned.
        metric_label: Name of the metric.

    Raises:
        ProfilingError: It is no result, or its metric is not a number above 0.
    """
    if not isinstance(result, BackendProfilingResult):
        raise ProfilingError(f"_measure returned {result!r}; expected a BackendProfilingResult")
    metric = result.metric
    if not isinstance(metric, int | float) or not math.isfinite(metric) or metric <= 0:
        raise ProfilingError(f"{metric_label or 'the metric'} is {metric!r}; expected a finite number above 0")
    return result
