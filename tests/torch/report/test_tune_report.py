import json
import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from aitune.exceptions import AITuneUserInputError
from aitune.torch.backend.artifact_path import ArtifactPath
from aitune.torch.report.tune_report import ModuleReport, TuneReport
from aitune.torch.task.outcome import CandidateOutcome, GraphReport

PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3)
    | st.dictionaries(st.text(max_size=6) | st.just("$float"), inner, max_size=3),
    max_leaves=8,
)  # fmt: skip


def with_outcome(report: TuneReport, **changes: Any) -> TuneReport:
    """The report with other fields in the outcome of its winner."""
    graph = report.modules[0].graphs[0]
    outcomes = (graph.outcomes[0], replace(graph.outcomes[1], **changes), *graph.outcomes[2:])
    return replace(report, modules=(ModuleReport("encoder", "tuned", (replace(graph, outcomes=outcomes),)),))


def test_a_report_comes_back_equal(report: TuneReport) -> None:
    text = report.to_json()
    assert TuneReport.from_json(text) == report
    assert TuneReport.from_json(text.encode()) == report
    json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(plain=st.dictionaries(st.text(max_size=6), PLAIN, max_size=4))
def test_any_plain_settings_come_back_equal(report: TuneReport, plain: dict[str, Any]) -> None:
    changed = replace(report, settings=plain)
    assert TuneReport.from_json(changed.to_json()) == changed


def test_numbers_that_json_lacks_come_back(report: TuneReport) -> None:
    changed = replace(
        with_outcome(report, check_seconds=math.inf, measure_seconds=-math.inf, build_seconds=math.nan),
        settings={"nan": math.nan, "inf": [math.inf, -math.inf]},
    )
    read = TuneReport.from_json(changed.to_json())
    outcome = read.modules[0].graphs[0].outcomes[1]
    assert (outcome.check_seconds, outcome.measure_seconds) == (math.inf, -math.inf)
    assert math.isnan(outcome.build_seconds)
    assert math.isnan(read.settings["nan"])
    assert read.settings["inf"] == [math.inf, -math.inf]


def test_artifact_paths_and_other_values_become_strings_and_lists(report: TuneReport, artifact: ArtifactPath) -> None:
    state = {"model": artifact, "path": artifact.root, "pair": (1, 2), "names": {"b", "a"}, 3: "three"}
    read = TuneReport.from_json(with_outcome(report, state=state).to_json())
    assert read.modules[0].graphs[0].outcomes[1].state == {
        "model": str(artifact.path),
        "path": str(artifact.root),
        "pair": [1, 2],
        "names": ["a", "b"],
        "3": "three",
    }
    assert TuneReport.from_json(read.to_json()) == read


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is not JSON"),
        ("{", "is not JSON"),
        (b"\xff\xfe\xff", "is not JSON"),
        ("[]", "format version None"),
        ("{}", "format version None"),
        ('{"format_version": 2, "report": {}}', "format version 2"),
        ('{"format_version": 1}', "no tune report"),
        ('{"format_version": 1, "report": {"modules": []}}', "no tune report.*environment"),
        ('{"format_version": 1, "report": {"modules": 3}}', "no tune report"),
        ('{"format_version": 1, "report": {"$float": "red"}}', "is not JSON"),
        ('{"format_version": 1, "report": {"$float": [1]}}', "is not JSON"),
        ("[" * 100_000, "is not JSON"),
        (None, "is not JSON"),
        ({"format_version": 1}, "is not JSON"),
    ],
    ids=lambda given: str(given)[:40],
)
def test_what_is_no_report_is_refused(text: Any, message: str) -> None:
    with pytest.raises(AITuneUserInputError, match=message):
        TuneReport.from_json(text)


def test_a_state_that_holds_itself_is_named(report: TuneReport) -> None:
    state: dict[str, Any] = {}
    state["me"] = state
    with pytest.raises(AITuneUserInputError, match="hold themselves"):
        with_outcome(report, state=state).to_json()


def test_an_unknown_status_is_refused(report: TuneReport) -> None:
    with pytest.raises(AITuneUserInputError, match="no tune report"):
        TuneReport.from_json(report.to_json().replace('"not called"', '"lost"'))


def test_the_winner_is_found_by_module(report: TuneReport) -> None:
    winner = report.winner("encoder")
    assert isinstance(winner, CandidateOutcome)
    assert winner.key == "onnx-key"
    assert report.winner("encoder", "graph0") == winner
    assert report.winner("head") is None


def test_a_graph_must_be_named_where_there_are_several(report: TuneReport, graph: GraphReport) -> None:
    other = replace(graph, graph="graph1", winner="baseline")
    several = replace(report, modules=(ModuleReport("encoder", "tuned", (graph, other)),))
    assert several.winner("encoder", "graph1") == graph.outcomes[0]
    with pytest.raises(AITuneUserInputError, match="'graph0', 'graph1'"):
        several.winner("encoder")
    with pytest.raises(AITuneUserInputError, match="no graph 'graph2'"):
        several.winner("encoder", "graph2")


def test_an_unknown_module_is_an_error_that_lists_the_known_ones(report: TuneReport) -> None:
    with pytest.raises(AITuneUserInputError, match=r"'decoder'.*'encoder', 'head'"):
        report.winner("decoder")


def test_the_summary_has_a_line_for_each_module(report: TuneReport) -> None:
    first, second = report.summary().splitlines()
    assert first.startswith("encoder: tuned; ONNX Runtime, 1.97 [1.91, 2.03] times the original's speed")
    assert second == "head: not called: the function never called it"


def test_the_summary_names_graphs_where_there_are_several(report: TuneReport, graph: GraphReport) -> None:
    other = replace(graph, graph="graph1", winner=None, reason="every candidate failed")
    several = replace(report, modules=(ModuleReport("encoder", "tuned", (graph, other)),))
    first, second = several.summary().splitlines()
    assert first.startswith("encoder [graph0]: tuned")
    assert second == "encoder [graph1]: tuned; nothing chosen: every candidate failed"
