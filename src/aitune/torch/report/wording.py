"""Outcomes in words, shared by the table, the progress display and the log."""

from __future__ import annotations

from collections.abc import Sequence

from aitune.torch.task.outcome import (
    TOO_FEW_PAIRS,
    BatchMeasurement,
    CandidateOutcome,
    GraphReport,
    PairedComparison,
    Rejection,
)
from aitune.units import get_metric

LONGEST_REASON = 400
"""Characters of a reason that are shown; the whole text stays in the report."""

NOT_COMPARABLE = "values not comparable"
"""Begins the note of an agreement whose values could not be compared, because the forward is random."""


def shorten(text: str, limit: int = LONGEST_REASON) -> str:
    """Put a text on one line, and cut it where it is longer than ``limit`` characters."""
    flat = " ".join(text.split())
    return flat if len(flat) <= limit else f"{flat[:limit]}... (the rest is in the JSON report)"


def baseline_of(graph: GraphReport) -> CandidateOutcome | None:
    """Return the outcome of the original module, if there is one."""
    return next((outcome for outcome in graph.outcomes if outcome.is_baseline), None)


def winner_of(graph: GraphReport) -> CandidateOutcome | None:
    """Return the outcome that was chosen, if one was."""
    return next((outcome for outcome in graph.outcomes if outcome.key == graph.winner), None)


def comparison_with_baseline(graph: GraphReport, outcome: CandidateOutcome) -> PairedComparison | None:
    """Return the paired comparison of a candidate with the original module, if there was one."""
    baseline = baseline_of(graph)
    if baseline is None:
        return None
    pair = (outcome.key, baseline.key)
    return next((c for c in graph.comparisons if (c.candidate, c.opponent) == pair), None)


def best_measurement(outcome: CandidateOutcome) -> BatchMeasurement | None:
    """Return the measurement with the highest throughput, if anything was measured."""
    return max(outcome.measurements, key=lambda measurement: measurement.throughput, default=None)


def speedup_interval(comparison: PairedComparison) -> str:
    """Write a speed-up with its interval, such as ``"1.53 [1.49, 1.57]"``, or why there is none to be shown."""
    if not comparison.was_measured:
        return "not compared"
    if not comparison.is_informative:
        return TOO_FEW_PAIRS
    number = get_metric("speedup").number
    return f"{number(comparison.speedup)} [{number(comparison.low)}, {number(comparison.high)}]"


def verdict_and_reason(graph: GraphReport, outcome: CandidateOutcome) -> str:
    """Say how a candidate ended and why.

    Args:
        graph: The record of the graph.
        outcome: One of its outcomes.
    """
    comparison = comparison_with_baseline(graph, outcome)
    if outcome.status == "failed":
        parts = [f"failed in {outcome.stage}", outcome.reason or outcome.error_type]
    elif outcome.status != "ok":
        parts = [outcome.status, outcome.reason]
    elif outcome.is_baseline:
        parts = ["baseline", outcome.reason]
    elif comparison is not None:
        parts = [comparison.verdict, comparison.reason]
    else:
        parts = ["measured, not side by side" if outcome.measurements else _unmeasured(outcome), outcome.reason]
    text = ": ".join(shorten(part) for part in parts if part)
    if outcome.key == graph.winner:
        text = f"CHOSEN; {text}"
    # What stands in place of a figure is said where the figure would be missed.
    compared = () if outcome.agreement is None else outcome.agreement.notes
    unknown = [note for note in compared if note.startswith(NOT_COMPARABLE)]
    deviations = () if outcome.agreement is None else outcome.agreement.deviations
    different = [f"other than the original with exceptional values: {_deviations(deviations)}"] if deviations else []
    return "; ".join([text, *(shorten(note) for note in (*outcome.notes, *unknown, *different))])


def _unmeasured(outcome: CandidateOutcome) -> str:
    return "neither checked nor measured" if outcome.agreement is None else "agrees, not measured"


def _deviations(deviations: Sequence[Rejection]) -> str:
    return ", ".join(f"{found.where} gives {found.got} instead of {found.expected}" for found in deviations)


def outcome_sentence(outcome: CandidateOutcome) -> str:
    """Say in one line how the evaluation of a candidate ended.

    Args:
        outcome: What was seen of it.
    """
    if outcome.status != "ok":
        stage = f" in {outcome.stage}" if outcome.status == "failed" else ""
        return f"{outcome.description}: {outcome.status}{stage}: {shorten(outcome.reason or outcome.error_type or '')}"
    parts = [] if outcome.is_baseline else [f"built in {get_metric('duration').format(outcome.build_seconds)}"]
    if outcome.agreement is not None and outcome.agreement.relative_error is not None:
        parts.append(f"relative error {get_metric('relative_error').format(outcome.agreement.relative_error)}")
    best = best_measurement(outcome)
    if best is not None:
        throughput = get_metric("throughput").format(best.throughput)
        latency = get_metric("latency").format(best.median_ms)
        parts.append(f"{throughput} at batch size {best.batch_size} ({latency} a call)")
    return f"{outcome.description}: {', '.join(parts) or 'nothing measured'}"


def graph_sentence(graph: GraphReport) -> str:
    """Say in one line what was chosen for a graph and why."""
    winner = winner_of(graph)
    if winner is None:
        return f"nothing chosen: {shorten(graph.reason)}"
    comparison = None if winner.is_baseline else comparison_with_baseline(graph, winner)
    is_known = comparison is not None and comparison.is_informative
    gain = f", {speedup_interval(comparison)} times the original's speed" if comparison and is_known else ""
    return f"{winner.description}{gain}: {shorten(graph.reason)}"


def checking_sentence(graph: GraphReport) -> str | None:
    """Say what the proof that the answers are right cost; ``None`` where nothing was checked.

    Args:
        graph: The record of a graph.
    """
    checked = [outcome for outcome in graph.outcomes if outcome.agreement is not None]
    if not checked:
        return None
    seconds = get_metric("duration").format
    checking = graph.reference_seconds + sum(outcome.check_seconds for outcome in checked)
    building = sum(outcome.build_seconds for outcome in graph.outcomes if not outcome.is_baseline)
    share = f", {checking / (checking + building):.0%} of both" if checking + building > 0 else ""
    return (
        f"Checked in {seconds(checking)} (the original's answers: {seconds(graph.reference_seconds)}), "
        f"built in {seconds(building)}{share}"
    )
