"""The candidates that no other one beats in speed and accuracy at once."""

from __future__ import annotations

from dataclasses import dataclass, replace

from aitune.torch.report.wording import baseline_of, best_measurement, comparison_with_baseline
from aitune.torch.task.outcome import CandidateOutcome, GraphReport


@dataclass(frozen=True)
class FrontPoint:
    """How fast and how accurate one candidate is.

    Args:
        key: Key of the candidate.
        description: Short text for people.
        speedup: Its speed over that of the original module.
        low: Lower end of the interval of the speed-up; the speed-up itself where there is none.
        high: Upper end.
        relative_error: Largest relative L2 error of an output; 0 where it agrees within the module's own rounding.
        cosine: Smallest cosine between an output and the original's, where it was computed.
        metric: The user's own metric, where the budget has one.
        is_undecided: Whether the speed could not be told from that of the original module: its interval counts then.
        is_beaten: Whether another candidate is at least as fast and as accurate, and better in one of the two.
    """

    key: str
    description: str
    speedup: float
    low: float
    high: float
    relative_error: float
    cosine: float | None
    metric: float | None
    is_undecided: bool = False
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
    marked = [replace(point, is_beaten=any(_beats(other, point) for other in points)) for point in points]
    return tuple(sorted(marked, key=lambda point: (-point.speedup, point.relative_error)))


def _point(graph: GraphReport, outcome: CandidateOutcome) -> FrontPoint | None:
    speed, agreement = _speed(graph, outcome), outcome.agreement
    if outcome.status != "ok" or speed is None:
        return None
    error: float | None = 0.0
    cosine, metric = (1.0, None) if agreement is None else (agreement.cosine, agreement.metric)
    if not outcome.is_baseline:
        error = None if agreement is None else agreement.relative_error
        if error is None:
            return None
    accuracy = 0.0 if outcome.is_exact or error is None else error
    estimate, low, high, is_undecided = speed
    return FrontPoint(outcome.key, outcome.description, estimate, low, high, accuracy, cosine, metric, is_undecided)


def _speed(graph: GraphReport, outcome: CandidateOutcome) -> tuple[float, float, float, bool] | None:
    """Return the speed-up, its interval, and whether it is undecided; ``None`` where nothing was measured."""
    if outcome.is_baseline:
        return 1.0, 1.0, 1.0, False
    paired = comparison_with_baseline(graph, outcome)
    if paired is not None and not paired.was_measured:
        return None
    if paired is not None:
        return paired.speedup, paired.low, paired.high, paired.verdict == "undecided"
    baseline = baseline_of(graph)
    ours, theirs = best_measurement(outcome), best_measurement(baseline) if baseline else None
    if ours is None or theirs is None:
        return None
    ratio = ours.throughput / theirs.throughput
    return ratio, ratio, ratio, False


def _beats(one: FrontPoint, other: FrontPoint) -> bool:
    if one.is_undecided or other.is_undecided:
        is_as_fast = is_faster = one.low > other.high
    else:
        is_as_fast, is_faster = one.speedup >= other.speedup, one.speedup > other.speedup
    is_as_accurate = one.relative_error <= other.relative_error
    return is_as_fast and is_as_accurate and (is_faster or one.relative_error < other.relative_error)
