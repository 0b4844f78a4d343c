"""The record of a graph as a table of plain text."""

from __future__ import annotations

import io
import textwrap
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

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
from aitune.torch.task.outcome import TOO_FEW_PAIRS, CandidateOutcome, GraphReport, is_too_wide
from aitune.units import MISSING, get_metric
from aitune.utils.printable import printable

if TYPE_CHECKING:
    from rich.table import Table

INLINE_BATCH_SIZES = 3
"""Batch sizes that fit beside the other columns; more of them go into tables of their own."""

BATCH_SIZES_A_TABLE = 6


def graph_table(graph: GraphReport, width: int) -> str:
    """Write the candidates of one graph: the baseline first, one row each, then the winner and why.

    Args:
        graph: The record of the graph.
        width: Characters in a line.

    Returns:
        Lines of plain text, none longer than ``width``.
    """
    outcomes = sorted(graph.outcomes, key=lambda outcome: not outcome.is_baseline)
    sizes = sorted({m.batch_size for outcome in outcomes for m in outcome.measurements})
    inline = sizes if len(sizes) <= INLINE_BATCH_SIZES else []
    parts = [_wrapped("", shorten(graph.description), width)]
    if outcomes:
        parts.append(_render(_evidence_table(graph, outcomes, inline), width))
    if sizes and not inline:
        chunks = [sizes[i : i + BATCH_SIZES_A_TABLE] for i in range(0, len(sizes), BATCH_SIZES_A_TABLE)]
        parts.extend(_render(_throughput_table(outcomes, chunk), width) for chunk in chunks)
    if any(_speedup_cell(graph, outcome).startswith("~") for outcome in outcomes):
        parts.append(_wrapped("~ ", "from the first measurement alone, not measured side by side", width))
    parts.append(_wrapped("" if winner_of(graph) is None else "Chosen: ", graph_sentence(graph), width))
    if any(not outcome.is_exact and outcome.status == "ok" for outcome in outcomes):
        parts.append(_render(_front_table(graph), width))
    share = checking_sentence(graph)
    if share is not None:
        parts.append(_wrapped("", share, width))
    parts.extend(_wrapped("Warning: ", shorten(warning), width) for warning in graph.warnings)
    return "\n".join(parts)


def wrap_text(text: str, width: int, indent: str = "") -> str:
    """Break a text into lines of at most ``width`` characters.

    Args:
        text: One paragraph.
        width: Characters in a line.
        indent: What every line but the first begins with.
    """
    line = printable(" ".join(text.split()))
    return textwrap.fill(line, width, subsequent_indent=indent) if line else ""


def _wrapped(label: str, text: str, width: int) -> str:
    return wrap_text(label + text, width, "  ")


def _evidence_table(graph: GraphReport, outcomes: Sequence[CandidateOutcome], sizes: Sequence[int]) -> Table:
    table = _empty_table()
    table.add_column("candidate", max_width=26, overflow="fold")
    table.add_column("built in\ns", justify="right", no_wrap=True)
    table.add_column("agrees\n(rel. error)", justify="right", no_wrap=True)
    for size in sizes:
        table.add_column(f"batch {size}\nsamples/s", justify="right", no_wrap=True)
    table.add_column("speed-up\n[interval]", justify="right", no_wrap=True)
    table.add_column("verdict and reason", ratio=1, overflow="fold")
    for outcome in outcomes:
        throughputs = _throughputs(outcome)
        built = outcome.build_seconds if outcome.build_seconds > 0 and not outcome.is_baseline else None
        table.add_row(
            printable(outcome.description),
            get_metric("duration").number(built),
            _agreement_cell(outcome),
            *(throughputs.get(size, MISSING) for size in sizes),
            _speedup_cell(graph, outcome),
            printable(verdict_and_reason(graph, outcome)),
        )
    return table


def _throughput_table(outcomes: Sequence[CandidateOutcome], sizes: Sequence[int]) -> Table:
    table = _empty_table()
    table.add_column("samples/s", max_width=26, overflow="fold")
    for size in sizes:
        table.add_column(f"batch {size}", justify="right", no_wrap=True)
    for outcome in outcomes:
        throughputs = _throughputs(outcome)
        if throughputs:
            table.add_row(printable(outcome.description), *(throughputs.get(size, MISSING) for size in sizes))
    return table


def _front_table(graph: GraphReport) -> Table:
    table = _empty_table()
    table.add_column("speed and accuracy", max_width=40, overflow="fold")
    for name in ("speed-up", "rel. error", "cosine", "metric"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("", ratio=1)
    for point in speed_accuracy_front(graph):
        table.add_row(
            printable(point.description),
            get_metric("speedup").number(point.speedup),
            get_metric("relative_error").number(point.relative_error),
            MISSING if point.cosine is None else f"{point.cosine:.6f}",
            MISSING if point.metric is None else f"{point.metric:.6g}",
            ("beaten on both" if point.is_beaten else "not beaten")
            + (f"; speed undecided, {_interval(point)}" if point.is_undecided else ""),
        )
    return table


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


def _empty_table() -> Table:
    from rich.box import Box
    from rich.table import Table

    # Spaces and dashes alone: a report goes into log files and terminals of any encoding.
    plain = Box("    \n    \n -- \n    \n    \n    \n    \n    \n", ascii=True)
    return Table(box=plain, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0), expand=True)


def _render(table: Table, width: int) -> str:
    from rich.console import Console

    text = io.StringIO()
    console = Console(
        file=text, width=width, color_system=None, force_terminal=False, markup=False, emoji=False, highlight=False
    )
    console.print(table)
    return "\n".join(line.rstrip() for line in text.getvalue().rstrip().splitlines())
