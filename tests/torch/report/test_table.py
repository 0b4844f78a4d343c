import re
from dataclasses import replace
from typing import Any

import pytest

from aitune.exceptions import AITuneUserInputError
from aitune.torch.report.table import graph_table
from aitune.torch.report.tune_report import TuneReport
from aitune.torch.task.outcome import Agreement, BatchMeasurement, GraphReport


def unwrapped(text: str) -> str:
    return " ".join(text.split())


@pytest.mark.parametrize("width", [80, 100, 120, 200])
def test_no_line_is_longer_than_the_width_and_all_is_plain_text(report: TuneReport, width: int) -> None:
    table = report.table(width)
    assert max(len(line) for line in table.splitlines()) <= width
    assert table.isascii()
    assert "\x1b" not in table


TEXTS_OF_A_REPORT = [
    "ONNX Runtime", "OpenVINO f32", "encoder", "head", "the clock", "x: float32", "Some Processor", "faster than",
    "got 1.5", "one session", "never called", "clearly", "ran out",
]  # fmt: skip


def test_what_a_report_says_cannot_steer_the_terminal(report: TuneReport) -> None:
    text = report.to_json()
    for part in TEXTS_OF_A_REPORT:
        assert part in text
        text = text.replace(part, part[:2] + r"\u001b[2J\u009b\u202e" + part[2:])
    read = TuneReport.from_json(text)
    wrong = next(outcome.description for outcome in read.modules[0].graphs[0].outcomes if outcome.status == "rejected")
    for shown in (read.table(), read.table(200), read.summary(), str(read.explain(wrong))):
        assert all(line.isprintable() for line in shown.split("\n"))
        assert r"\x1b[2J\x9b\u202e" in shown.replace("\n", "").replace(" ", "")


@pytest.mark.parametrize("width", [79, 120.0, "120", None, True])
def test_a_width_without_room_for_the_columns_is_refused(report: TuneReport, width: Any) -> None:
    with pytest.raises(AITuneUserInputError, match=rf"width .* an integer of at least 80, got {width!r}"):
        report.table(width)


def test_the_baseline_comes_first_then_the_candidates_in_their_order(graph: GraphReport) -> None:
    turned = replace(graph, outcomes=(*graph.outcomes[1:], graph.outcomes[0]))
    table = graph_table(turned, 120)
    names = ["original module", "ONNX Runtime", "Inductor JIT", "OpenVINO f32", "TensorRT", "Inductor AOT"]
    places = [table.index(f"\n{name}") for name in names]
    assert places == sorted(places)


def test_the_figures_of_each_row(graph: GraphReport) -> None:
    table = graph_table(graph, 160)
    assert re.search(r"original module +- +reference +250\.0 +400\.0 +1\.00 +baseline", table)
    assert re.search(r"ONNX Runtime +2\.5 +2\.5e-07 +500\.0 +800\.0 +1\.97 \[1\.91, 2\.03\] +CHOSEN; faster", table)
    assert re.search(r"Inductor JIT +20\.0 +1\.0e-07 +200\.0 +200\.0 +~0\.50 +measured, not side by side", table)
    assert re.search(r"OpenVINO f32 +2\.0 +NO 2\.0e-01 +- +- +- +rejected: value differs", table)
    assert re.search(r"TensorRT +- +- +- +- +- +unavailable: tensorrt", table)
    assert re.search(r"Inductor AOT +- +- +- +- +- +failed in build: no such", table)
    assert re.search(r"batch 1 +batch 8", table)
    assert "samples/s" in table


@pytest.mark.parametrize(
    ("agreement", "said"), [(Agreement(True), "agrees, not measured"), (None, "neither checked nor measured")]
)
def test_a_choice_that_was_not_measured_is_not_called_measured(
    graph: GraphReport, agreement: Agreement | None, said: str
) -> None:
    chosen = replace(graph.outcomes[1], agreement=agreement, measurements=())
    table = unwrapped(graph_table(replace(graph, outcomes=(chosen,), comparisons=()), 200))
    assert f"CHOSEN; {said}" in table


def test_an_interval_that_says_nothing_is_not_shown(graph: GraphReport) -> None:
    wide = replace(graph.comparisons[0], speedup=0.14, low=1e-9, high=6892164.92, verdict="undecided", pairs=4)
    lossy = replace(graph.outcomes[1], is_exact=False)
    table = graph_table(replace(graph, outcomes=(graph.outcomes[0], lossy), comparisons=(wide,)), 200)
    assert "6892164" not in table
    assert "too few pairs to know" in table
    assert "times the original's speed" not in table
    assert "speed undecided, too few pairs to know" in table


def test_a_missing_backend_comes_with_the_command_that_installs_it(graph: GraphReport) -> None:
    assert 'run: pip install "aitune-open[tensorrt]"' in graph_table(graph, 200)


def test_brackets_in_a_text_are_shown_as_they_are(graph: GraphReport) -> None:
    # rich takes [tensorrt] for a style and would swallow it.
    odd = replace(graph.outcomes[1], description="ORT [bold]int8[/bold] :smile:")
    table = graph_table(replace(graph, outcomes=(graph.outcomes[0], odd)), 200)
    assert "ORT [bold]int8[/bold]" in table
    assert ":smile:" in table


def test_a_long_reason_is_wrapped_and_cut_with_a_hint(graph: GraphReport) -> None:
    assert 300 < graph_table(graph, 120).count("x") < 600
    assert "xxx... (the rest is in the JSON report)" in graph_table(graph, 700)


def test_the_winner_why_and_the_warnings_come_after_the_table(graph: GraphReport) -> None:
    text = unwrapped(graph_table(graph, 120))
    chosen = text.index("Chosen: ONNX Runtime, 1.97 [1.91, 2.03] times the original's speed: faster than the original")
    assert text.index("Inductor AOT") < chosen < text.index("Warning: batch size 64 ran out of memory")
    assert "~ from the first measurement alone" in text


def test_the_mark_of_first_measurements_is_explained_only_where_it_is_used(graph: GraphReport) -> None:
    assert "~" not in graph_table(replace(graph, outcomes=graph.outcomes[:2]), 120)


def test_nothing_chosen_is_said(graph: GraphReport) -> None:
    text = graph_table(replace(graph, winner=None, reason="dry run"), 120)
    assert "nothing chosen: dry run" in text
    assert "Chosen:" not in text
    assert "CHOSEN" not in text


def test_the_original_that_wins_has_no_speed_up(graph: GraphReport) -> None:
    text = graph_table(replace(graph, winner="baseline", reason="nothing was faster"), 120)
    assert "Chosen: original module: nothing was faster" in text


def test_many_batch_sizes_go_into_tables_of_their_own(graph: GraphReport) -> None:
    sizes = [2**power for power in range(9)]
    measurements = tuple(BatchMeasurement(size, 1.0, 1.0, 1.0, 1.0, 1.0, 9) for size in sizes)
    outcomes = tuple(replace(outcome, measurements=measurements) for outcome in graph.outcomes[:2])
    table = graph_table(replace(graph, outcomes=outcomes), 120)
    assert max(len(line) for line in table.splitlines()) <= 120
    headings = re.findall(r"batch (\d+)", table.split("Chosen")[0].split("Warning")[0])
    assert [int(size) for size in headings if size != "0"] == sizes
    assert table.count("256,000.0") == 2


def test_a_graph_without_outcomes_still_says_why(graph: GraphReport) -> None:
    table = graph_table(replace(graph, outcomes=(), comparisons=(), winner=None, reason="dry run"), 120)
    assert "nothing chosen: dry run" in table


def test_the_report_names_machine_modules_and_warnings(report: TuneReport) -> None:
    text = unwrapped(report.table())
    for part in (
        "Some Processor; 4 cores, 2 threads; 8.0 GiB; Python 3.11.7; torch 2.13.0, onnxruntime 1.32.0",
        "Module 'encoder': tuned",
        "Graph 'graph0' (31.5 s)",
        "Module 'head': not called: the function never called it",
        "Warning: the clock was disturbed",
        "Total: 40.2 s",
    ):
        assert part in text


def test_why_there_is_no_figure_of_a_random_forward_is_said(graph: GraphReport) -> None:
    note = "values not comparable: forward is random, and the candidate draws other numbers"
    said = replace(graph.outcomes[1], agreement=Agreement(True, notes=("another note", note)))
    table = unwrapped(graph_table(replace(graph, outcomes=(graph.outcomes[0], said)), 250))
    assert "values not comparable: forward is random" in table
    assert "another note" not in table


REASON = "failed in build: torch._dynamo.exc.UserError: Constraints violated (dim0)! " + "for more information, " * 8


def crowded(graph: GraphReport, sizes: int, candidates: int, length: int) -> GraphReport:
    """Many candidates with long names and long reasons, an accuracy front among them."""
    names = [
        "".join(f" {word}" for word in ["TorchInductorJitBackend"] * 9)[:length] + f" {n}" for n in range(candidates)
    ]
    measurements = tuple(BatchMeasurement(4**k, 1.0, 1.0, 1.0, 1.0, 1.0, 9) for k in range(sizes))
    ok, baseline = graph.outcomes[1], replace(graph.outcomes[0], measurements=measurements)
    fast = [replace(ok, description=name, key=name, is_exact=False, measurements=measurements) for name in names]
    failed = [
        replace(outcome, key=outcome.key + "!", status="failed", reason=REASON, agreement=None) for outcome in fast
    ]
    return replace(graph, outcomes=(baseline, *fast, *failed), comparisons=(), winner=None, reason="none")


@pytest.mark.parametrize("length", [8, 26, 60, 120])
@pytest.mark.parametrize("candidates", [1, 6])
@pytest.mark.parametrize("sizes", [1, 2, 3, 4, 5, 6])
@pytest.mark.parametrize("width", [80, 100, 120])
def test_no_column_is_read_downwards(graph: GraphReport, width: int, sizes: int, candidates: int, length: int) -> None:
    shown = graph_table(crowded(graph, sizes, candidates, length), width)
    lines = shown.splitlines()
    assert max(map(len, lines)) <= width
    assert shown.isascii()
    # A reason of 250 characters, 32 in a line, and the name that goes on in more lines.
    assert len(lines) <= 30 + candidates * 2 * 24
    words = set(shown.split())
    assert {"torch._dynamo.exc.UserError:", "TorchInductorJitBackend"[: length - 1], "reference"} <= words
    assert {f"{1000 * 4**k:,.1f}" for k in range(sizes)} <= words
    assert shown.count("verdict") <= 1
    assert all(f"batch {4**k} " in shown.replace("\n", " ") for k in range(sizes))


@pytest.mark.parametrize("width", [80, 100, 120])
def test_every_verdict_stands_beside_the_name_of_its_candidate(graph: GraphReport, width: int) -> None:
    shown = unwrapped(graph_table(graph, width))
    for outcome in graph.outcomes[1:]:
        assert re.search(rf"{re.escape(outcome.description)}(:| [-0-9.]+ ) ?", shown)
