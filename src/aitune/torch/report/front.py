"""The candidates that no other one beats in speed and accuracy at once."""

from __future__ import annotations

from dataclasses import dataclass

from aitune.torch.report.wording import baseline_of, best_measurement, comparison_with_baseline
from aitune.torch.task.outcome import CandidateOutcome, GraphReport


@dataclass(frozen=True)
class FrontPoint:
    """How fast and how accurate one candidate is.

    Args:
        key: Key of the candidate.
        description: Short text for people.
        speedup: Its speed over that of the original module.
        relative_error: Largest relative L2 error of an output; 0 where it agrees within the module's own rounding.
        cosine: Smallest cosine between an output and the original's, where it was computed.
        metric: The user's own metric, where the budget has one.
        is_beaten: Whether another candidate is at least as fast and as accurate, and better in one of the two.
    """

    key: str
    description: str
    speedup: float
    relative_error: float
    cosine: float | None
    metric: float | None
    is_beaten: bool = False


def speed_accuracy_front(graph: GraphReport) -> tuple[FrontPoint, ...]:
    """List what was measured and accepted, the fastest first, and say which of it is beaten in both respects.

    A candidate that keeps the precision counts as free of errors: what remains is rounding, as the original has it.

    Args:
        graph: The record of the graph.

    Returns:
        A point for each candidate and the original; empty where nothing was measured or compared.
    """
    points = [point for outcome in graph.outcomes if (point := _point(graph, outcome)) is not None]
    marked = [
        FrontPoint(
            p.key, p.description, p.speedup, p.relative_error, p.cosine, p.metric, any(_beats(q, p) for q in points)
        )
        for p in points
    ]
    return tuple(sorted(marked, key=lambda point: (-point.speedup, point.relative_error)))


def _point(graph: GraphReport, outcome: CandidateOutcome) -> FrontPoint | None:
    speedup, agreement = _speedup(graph, outcome), outcome.agreement
    if outcome.status != "ok" or speedup is None:
        return None
    if outcome.is_baseline:
        return FrontPoint(outcome.key, outcome.description, speedup, 0.0, 1.0, None)
    if agreement is None or agreement.relative_error is None:
        return None
    error = 0.0 if outcome.is_exact else agreement.relative_error
    return FrontPoint(outcome.key, outcome.description, speedup, error, agreement.cosine, agreement.metric)


def _speedup(graph: GraphReport, outcome: CandidateOutcome) -> float | None:
    if outcome.is_baseline:
        return 1.0
    comparison = comparison_with_baseline(graph, outcome)
    if comparison is not None:
        return comparison.speedup
    baseline = baseline_of(graph)
    ours, theirs = best_measurement(outcome), best_measurement(baseline) if baseline else None
    return ours.throughput / theirs.throughput if ours and theirs else None


def _beats(one: FrontPoint, other: FrontPoint) -> bool:
    at_least = one.speedup >= other.speedup and one.relative_error <= other.relative_error
    return at_least and (one.speedup > other.speedup or one.relative_error < other.relative_error)
