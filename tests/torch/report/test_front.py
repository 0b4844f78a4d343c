from dataclasses import replace

import pytest
from report_parts import agreeing, measured

from aitune.torch.report.front import speed_accuracy_front
from aitune.torch.report.tune_report import ModuleReport
from aitune.torch.report.wording import speedup_interval
from aitune.torch.task.outcome import CandidateOutcome, OutputAgreement, PairedComparison


def lossy(key, milliseconds, error, metric=None):
    agreement = replace(agreeing(error), metric=metric)
    return CandidateOutcome(
        "OpenVINO", key, f"candidate {key}", "ok", "measure",
        is_exact=False, agreement=agreement, measurements=measured((8, milliseconds)),
    )  # fmt: skip


@pytest.fixture
def graph_with_lossy(graph):
    more = (lossy("fast", 5.0, 2e-2, 0.97), lossy("middle", 8.0, 1e-3, 0.999), lossy("beaten", 9.0, 5e-3, 0.99))
    return replace(graph, outcomes=(*graph.outcomes, *more))


def test_the_front_is_what_no_other_candidate_beats_in_both(graph_with_lossy):
    points = speed_accuracy_front(graph_with_lossy)
    assert [(point.key, point.is_beaten) for point in points] == [
        ("fast", False), ("middle", False), ("beaten", True), ("onnx-key", False), ("baseline", True),
        ("jit-key", True),
    ]  # fmt: skip
    assert points[0].speedup == pytest.approx(20.0 / 5.0)
    assert points[3].speedup == 1.97, "what was measured side by side counts"
    assert points[0].relative_error == 2e-2
    assert points[0].metric == 0.97
    assert points[3].relative_error == 0.0, "rounding is no loss"


def test_only_what_was_accepted_and_compared_counts(graph):
    random = CandidateOutcome("X", "random", "random", "ok", "measure", measurements=measured((8, 1.0)))
    points = speed_accuracy_front(replace(graph, outcomes=(*graph.outcomes, random)))
    assert {point.key for point in points} == {"baseline", "onnx-key", "jit-key"}
    assert speed_accuracy_front(replace(graph, outcomes=())) == ()


def test_equal_candidates_do_not_beat_each_other(graph):
    twins = (lossy("a", 5.0, 1e-2), lossy("b", 5.0, 1e-2))
    points = speed_accuracy_front(replace(graph, outcomes=(graph.outcomes[0], *twins)))
    assert [(point.key, point.is_beaten) for point in points[:2]] == [("a", False), ("b", False)]


def test_the_table_and_the_report_show_it(report, graph_with_lossy):
    whole = replace(report, modules=(ModuleReport("encoder", "tuned", (graph_with_lossy,)),))
    assert [point.key for point in whole.front("encoder")][:2] == ["fast", "middle"]
    table = whole.table()
    assert "speed and accuracy" in table
    assert "not beaten" in table
    assert "beaten on both" in table
    assert "0.97" in table
    assert type(whole).from_json(whole.to_json()).front("encoder") == whole.front("encoder")
    assert "speed and accuracy" not in report.table(), "with exact candidates alone there is nothing to weigh"


def test_the_table_says_what_checking_cost(report, graph):
    outcomes = tuple(replace(outcome, check_seconds=0.5) for outcome in graph.outcomes)
    timed = replace(graph, outcomes=outcomes, reference_seconds=1.0)
    table = replace(report, modules=(ModuleReport("encoder", "tuned", (timed,)),)).table()
    assert "Checked in 2.5 s (the original's answers: 1.0 s), built in 24.5 s, 9% of both" in table
    unchecked = replace(graph, outcomes=(graph.outcomes[0],))
    assert "Checked in" not in replace(report, modules=(ModuleReport("encoder", "tuned", (unchecked,)),)).table()


def test_the_figures_of_an_agreement_are_the_worst_of_its_outputs():
    outputs = (OutputAgreement("a", 1e-3, 0, 0.99, None, None), OutputAgreement("b", 2e-3, 0, None, None, None))
    agreement = replace(agreeing(0.0), outputs=outputs)
    assert (agreement.relative_error, agreement.cosine) == (2e-3, 0.99)


def test_a_speed_that_is_undecided_beats_nothing_within_its_interval(graph):
    shaky = PairedComparison("shaky", "baseline", 700.0, 0.02, 2500.0, 0.995, "undecided", 6, 0, 3.0, "undecided")
    outcomes = (graph.outcomes[0], graph.outcomes[1], lossy("shaky", 0.1, 1e-3), lossy("slow", 12.0, 2e-2))
    noisy = replace(graph, outcomes=outcomes, comparisons=(*graph.comparisons, shaky))
    points = {point.key: point for point in speed_accuracy_front(noisy)}
    assert points["shaky"].is_undecided
    assert not points["shaky"].is_beaten
    assert not points["onnx-key"].is_beaten
    assert points["slow"].is_beaten, "by the exact candidate, whose speed is known"
    sure = replace(shaky, low=3.0)
    points = {point.key: point for point in speed_accuracy_front(replace(noisy, comparisons=(sure,)))}
    assert (points["shaky"].low, points["shaky"].high) == (3.0, 2500.0)


def test_a_comparison_without_a_pair_is_no_point_and_shows_no_interval(graph):
    candidate = next(outcome for outcome in graph.outcomes if outcome.key == "onnx-key")
    without = PairedComparison("onnx-key", "baseline", 1.0, 0.001, 1000.0, 0.0, "undecided", 0, 0, 0.1, "no time")
    unmeasured = replace(graph, comparisons=(without,))
    assert "onnx-key" not in [point.key for point in speed_accuracy_front(unmeasured)]
    assert candidate.measurements
    assert speedup_interval(without) == "not compared"
