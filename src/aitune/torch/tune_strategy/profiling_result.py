"""What a profiling strategy learns of one backend."""

from __future__ import annotations

import math
import numbers
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from aitune.exceptions import ProfilingError
from aitune.torch.backend.backend import Backend
from aitune.torch.tune_strategy.hook_results import as_number, expect_kind, hook_name, why_not_positive

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


def metric_of(result: BackendProfilingResult) -> float:
    """Return the metric of a usable result as a float, whatever kind of number it is kept as.

    Args:
        result: What :func:`require_usable` let through.
    """
    metric = as_number(result.metric)
    return math.nan if metric is None else metric


def require_usable(result: Any, metric_label: str, hook: str) -> BackendProfilingResult:
    """Return a result whose metric can be compared.

    Args:
        result: What a ``_measure`` hook returned.
        metric_label: Name of the metric.
        hook: The hook, as it is called in messages.

    Raises:
        ProfilingError: It is no result, its metric is not a number above 0, or its batch size is none.
    """
    if not isinstance(result, BackendProfilingResult):
        raise ProfilingError(f"{hook} returned {result!r}; expected a BackendProfilingResult")
    problem = why_not_positive(result.metric)
    if problem is not None:
        raise ProfilingError(f"{metric_label or 'the metric'} {problem} from {hook}")
    size = result.selected_batch_size
    if isinstance(size, bool) or not isinstance(size, numbers.Integral) or size < 1:
        raise ProfilingError(f"selected_batch_size is {size!r}; expected a positive integer from {hook}")
    return result


def plain_entries(result: BackendProfilingResult, metric_label: str) -> dict[str, int | float]:
    """Return the fields of a result as plain numbers.

    Args:
        result: A usable result.
        metric_label: Name of the metric.

    Raises:
        ProfilingError: Its ``to_json_dict`` gave something else than numbers by name.
    """
    entries: Any = result.to_json_dict(metric_label)
    if isinstance(entries, Mapping):
        plain = {str(name): _plain_number(value) for name, value in entries.items()}
        if None not in plain.values():
            return {name: value for name, value in plain.items() if value is not None}
    raise ProfilingError(
        f"{hook_name(result, 'to_json_dict')} returned {entries!r}; expected a dict of numbers by name"
    )


def _plain_number(value: Any) -> int | float | None:
    return int(value) if isinstance(value, numbers.Integral) else as_number(value)


def expect_candidate(value: Any, hook: str) -> _TuneCandidate:
    """Return a candidate that a hook returned.

    Args:
        value: What it returned.
        hook: The hook, as it is called in messages.

    Raises:
        AITuneUserInputError: It is no candidate, or one without a backend.
        ProfilingError: Its result cannot be compared; see :func:`require_usable`.
    """
    candidate = expect_kind(value, _TuneCandidate, hook, "a _TuneCandidate")
    expect_kind(candidate.backend, Backend, f"{hook}, as the backend of its candidate,", "a backend")
    require_usable(candidate.result, "the metric of its candidate", hook)
    return candidate
