"""How much accuracy a user gives away for speed."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from aitune.exceptions import AITuneUserInputError
from aitune.torch.module.sample import Sample

Metric: TypeAlias = Callable[[Sequence[Any], Sequence[Any], Sequence[Sample]], float]
"""``metric(reference_outputs, candidate_outputs, samples)``; larger is better."""


@dataclass(frozen=True)
class AccuracyBudget:
    """What a candidate that gives precision away on purpose has to keep; every limit that is set must hold.

    Args:
        max_relative_error: Largest relative L2 error of an output tensor, and of each row of a batch; for integer
            outputs the largest share of elements that differ.
        min_cosine: Smallest cosine between an output tensor (and each row of a batch) and the reference, in -1..1.
        metric: A figure of the user's own, such as the accuracy on a task; it gets the outputs on the recorded samples.
        min_metric: Smallest value of ``metric``.

    Raises:
        AITuneUserInputError: No limit is set, one is out of its range, or only one of ``metric`` and ``min_metric`` is
            given.
    """

    max_relative_error: float | None = None
    min_cosine: float | None = None
    metric: Metric | None = None
    min_metric: float | None = None

    def __post_init__(self) -> None:
        if self.max_relative_error is None and self.min_cosine is None and self.metric is None:
            raise AITuneUserInputError(
                "AccuracyBudget sets no limit; give max_relative_error, min_cosine, or metric with min_metric"
            )
        _require_number("max_relative_error", self.max_relative_error, 0.0, math.inf)
        _require_number("min_cosine", self.min_cosine, -1.0, 1.0)
        _require_number("min_metric", self.min_metric, -math.inf, math.inf)
        if (self.metric is None) != (self.min_metric is None):
            missing = "metric" if self.metric is None else "min_metric"
            raise AITuneUserInputError(f"AccuracyBudget: metric and min_metric belong together; {missing} is missing")
        if self.metric is not None and not callable(self.metric):
            raise AITuneUserInputError(
                f"AccuracyBudget: metric must be callable as metric(reference_outputs, candidate_outputs, samples), "
                f"got {self.metric!r}"
            )

    def measure(self, references: Sequence[Any], candidates: Sequence[Any], samples: Sequence[Sample]) -> float:
        """Compute the user's metric.

        Args:
            references: Outputs of the original module.
            candidates: Outputs of the candidate, in the same order.
            samples: The calls that gave them.

        Raises:
            AITuneUserInputError: There is no metric, it raised, or it did not return one finite number.
        """
        if self.metric is None:
            raise AITuneUserInputError("AccuracyBudget has no metric to measure; give metric and min_metric")
        try:
            value = self.metric(references, candidates, samples)
        except Exception as error:
            raise AITuneUserInputError(
                f"the metric of the AccuracyBudget raised {type(error).__name__}: {error}; it is called as "
                f"metric(reference_outputs, candidate_outputs, samples), three lists of one entry per sample"
            ) from error
        try:
            number = float(value)
        except (TypeError, ValueError, RuntimeError, OverflowError) as error:
            raise AITuneUserInputError(
                f"the metric of the AccuracyBudget returned {value!r}; expected one number"
            ) from error
        if not math.isfinite(number):
            raise AITuneUserInputError(f"the metric of the AccuracyBudget returned {number}; expected a finite number")
        return number


def _require_number(name: str, value: object, low: float, high: float) -> None:
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high or math.isinf(value):
        raise AITuneUserInputError(f"AccuracyBudget: {name} must be a number in {low}..{high}, got {value!r}")
