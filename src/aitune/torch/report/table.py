"""The record of a graph as a table of plain text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from aitune.torch.report.columns import Column, Rows, as_many_as_fit
from aitune.torch.report.front import FrontPoint, speed_accuracy_front
from aitune.torch.report.wording import (
    baseline_of,
    best_measurement,
    checking_sentence,
    comparison_with_baseline,
    graph_sentence,
    shorten,
    speedup_interval,
    verdict_and_reason,
    winner_of,
)
from aitune.torch.report.wrapping import wrap_text
from aitune.torch.task.outcome import TOO_FEW_PAIRS, CandidateOutcome, GraphReport, is_too_wide
from aitune.units import MISSING, get_metric
from aitune.utils.printable import printable

INLINE_BATCH_SIZES = 3
"""Most batch sizes beside the other columns; more of them go into tables of their own."""


def graph_table(graph: GraphReport, width: int) -> str:
    """Write the candidates of one graph: the baseline first, one row each, then the winner and why.

    Args:
        graph: The record of the graph.
        width: Characters in a line.

    Returns:
        Lines of plain text, none longer than ``width``.
    """
    outcomes = sorted(graph.outcomes, key=lambda outcome: not outcome.is_baseline)
    parts = [_wrapped("", shorten(graph.description), width), *_figures(graph, outcomes, width)]
    if any(_speedup_cell(graph, outcome).startswith("~") for outcome in outcomes):
        parts.append(_wrapped("~ ", "from the first measurement alone, not measured side by side", width))
    parts.append(_wrapped("" if winner_of(graph) is None else "Chosen: ", graph_sentence(graph), width))
    if any(not outcome.is_exact and outcome.status == "ok" for outcome in outcomes):
        parts.append(_front(graph).render(width))
    share = checking_sentence(graph)
    if share is not None:
        parts.append(_wrapped("", share, width))
    parts.extend(_wrapped("Warning: ", shorten(warning), width) for warning in graph.warnings)
    return "\n".join(parts)


def _figures(graph: GraphReport, outcomes: Sequence[CandidateOutcome], width: int) -> Iterator[str]:
    """Write the table of the candidates, and the throughputs in tables of their own where it has no room for them."""
    if not outcomes:
        return
    inline = _throughput_columns(outcomes, "batch {}\nsamples/s")
    rows = _evidence(graph, outcomes, inline)
    if len(inline) <= INLINE_BATCH_SIZES and rows.width <= width:
        yield rows.render(width)
        return
    yield _evidence(graph, outcomes, ()).render(width)
    measured = [outcome for outcome in outcomes if outcome.measurements]
    columns = _throughput_columns(measured, "batch {}")
    for part in as_many_as_fit(_names("samples/s", measured), columns, width):
        yield part.render(width)


def _wrapped(label: str, text: str, width: int) -> str:
    return wrap_text(label + text, width, "  ")


def _evidence(graph: GraphReport, outcomes: Sequence[CandidateOutcome], throughputs: Sequence[Column]) -> Rows:
    seconds = [o.build_seconds if o.build_seconds > 0 and not o.is_baseline else None for o in outcomes]
    figures = [
        Column("built in\ns", [get_metric("duration").number(value) for value in seconds]),
        Column("agrees\n(rel. error)", [_agreement_cell(outcome) for outcome in outcomes]),
        *throughputs,
        Column("speed-up\n[interval]", [_speedup_cell(graph, outcome) for outcome in outcomes]),
    ]
    reasons = [printable(verdict_and_reason(graph, outcome)) for outcome in outcomes]
    return Rows(_names("candidate", outcomes), figures, Column("verdict and reason", reasons))


def _names(heading: str, outcomes: Sequence[CandidateOutcome]) -> Column:
    return Column(heading, [printable(outcome.description) for outcome in outcomes])


def _throughput_columns(outcomes: Sequence[CandidateOutcome], heading: str) -> list[Column]:
    by_outcome = [_throughputs(outcome) for outcome in outcomes]
    return [
        Column(heading.format(size), [throughputs.get(size, MISSING) for throughputs in by_outcome])
        for size in sorted({size for throughputs in by_outcome for size in throughputs})
    ]


def _front(graph: GraphReport) -> Rows:
    points = speed_accuracy_front(graph)
    figures = [
        Column("speed-up", [get_metric("speedup").number(point.speedup) for point in points]),
        Column("rel. error", [get_metric("relative_error").number(point.relative_error) for point in points]),
        Column("cosine", [MISSING if point.cosine is None else f"{point.cosine:.6f}" for point in points]),
        Column("metric", [MISSING if point.metric is None else f"{point.metric:.6g}" for point in points]),
    ]
    remarks = [
        ("beaten on both" if point.is_beaten else "not beaten")
        + (f"; speed undecided, {_interval(point)}" if point.is_undecided else "")
        for point in points
    ]
    names = Column("speed and accuracy", [printable(point.description) for point in points])
    return Rows(names, figures, Column("", remarks))


def _interval(point: FrontPoint) -> str:
    if is_too_wide(point.low, point.high):
        return TOO_FEW_PAIRS
    number = get_metric("speedup").number
    return f"{number(point.low)} to {number(point.high)}"


def _throughputs(outcome: CandidateOutcome) -> Mapping[int, str]:
    number = get_metric("throughput").number
    return {m.batch_size: number(m.throughput) for m in outcome.measurements}


def _agreement_cell(outcome: CandidateOutcome) -> str:
    agreement = outcome.agreement
    if outcome.is_baseline:
        return "reference"
    if agreement is None:
        return "not checked" if outcome.status == "ok" else MISSING
    error = get_metric("relative_error").number(agreement.relative_error)
    return error if agreement.passed else f"NO {error}"


def _speedup_cell(graph: GraphReport, outcome: CandidateOutcome) -> str:
    if outcome.is_baseline:
        return get_metric("speedup").number(1.0)
    comparison = comparison_with_baseline(graph, outcome)
    if comparison is not None:
        return speedup_interval(comparison)
    baseline = baseline_of(graph)
    ours, theirs = best_measurement(outcome), best_measurement(baseline) if baseline else None
    if ours is None or theirs is None:
        return MISSING
    return f"~{get_metric('speedup').number(ours.throughput / theirs.throughput)}"
