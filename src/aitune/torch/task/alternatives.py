"""Which candidates should serve where the chosen one cannot: a pure choice over what was measured."""

from __future__ import annotations

import math

from aitune.torch.task.outcome import CandidateOutcome, GraphReport

MOST_ALTERNATIVES = 2
"""Builds of one graph beside the chosen one whose files are kept after tuning, so that saving can store them."""


def alternatives_of(report: GraphReport, number: int) -> list[CandidateOutcome]:
    """Return the outcomes that should serve where the winner cannot, best first.

    These are the candidates that came through, can be made from files, and measured no slower than the original: a
    slower one would be no alternative to the original itself.

    Args:
        report: The report of the run.
        number: The most to return.
    """
    baseline = next((outcome for outcome in report.outcomes if outcome.is_baseline), None)
    usable = [
        outcome
        for outcome in report.outcomes
        if outcome.status == "ok"
        and outcome.key != report.winner
        and not outcome.is_baseline
        and outcome.recovery == "artifact"
        and outcome.state is not None
        and outcome.measurements
    ]
    rated = [(_mean_latency_ratio(outcome, baseline), outcome) for outcome in usable]
    kept = sorted((pair for pair in rated if pair[0] <= 1.0), key=lambda pair: pair[0])
    return [outcome for _, outcome in kept[:number]]


def _mean_latency_ratio(outcome: CandidateOutcome, baseline: CandidateOutcome | None) -> float:
    """Return the geometric mean, over the batch sizes measured of both, of latency over the baseline's latency.

    Args:
        outcome: A measured candidate.
        baseline: The original; without one, or without a common batch size, the ratio counts as 1.
    """
    base = {} if baseline is None else {each.batch_size: each.median_ms for each in baseline.measurements}
    logs = [math.log(m.median_ms / base[m.batch_size]) for m in outcome.measurements if base.get(m.batch_size)]
    return math.exp(sum(logs) / len(logs)) if logs else 1.0
