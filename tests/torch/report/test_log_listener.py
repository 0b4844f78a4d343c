import logging
from dataclasses import dataclass

import pytest

from aitune.events import (
    CandidateFinished,
    CandidateStage,
    Event,
    GraphFinished,
    GraphStarted,
    RunFinished,
    RunStarted,
    SampleRecorded,
    Warned,
)
from aitune.torch.report.log_listener import LogListener
from aitune.torch.report.tune_report import TuneReport
from aitune.torch.task.outcome import GraphReport


@dataclass(frozen=True)
class Unheard(Event):
    detail: str = "100%s"


def logged(caplog: pytest.LogCaptureFixture, event: Event) -> tuple[int, str]:
    with caplog.at_level(logging.DEBUG, logger="aitune.tuning"):
        LogListener().on_event(event)
    (record,) = caplog.records
    assert record.name == "aitune.tuning"
    caplog.clear()
    return record.levelno, record.getMessage()


@pytest.mark.parametrize(
    ("event", "level", "message"),
    [
        (RunStarted(("encoder",), (1, 8)), logging.INFO, "tuning encoder; samples at batch sizes 1, 8"),
        (SampleRecorded(8, 3), logging.DEBUG, "recorded batch 3 of size 8"),
        (GraphStarted("m", "g", "x: float32[2]", ("A", "B")), logging.INFO, "m/g: x: float32[2]; candidates: A, B"),
        (GraphStarted("m", "g", "x", ()), logging.INFO, "m/g: x; candidates: none"),
        (CandidateStage("m", "g", "A", "build"), logging.DEBUG, "m/g: A: build"),
        (Warned("100% sure %s"), logging.WARNING, "100% sure %s"),
        (Warned("careful", "m", "g"), logging.WARNING, "m/g: careful"),
        (Warned("careful", "m"), logging.WARNING, "m: careful"),
        (Unheard(), logging.DEBUG, "Unheard(detail='100%s')"),
    ],
)
def test_events_in_the_log(caplog: pytest.LogCaptureFixture, event: Event, level: int, message: str) -> None:
    assert logged(caplog, event) == (level, message)


def test_how_a_candidate_ended_sets_the_level(caplog: pytest.LogCaptureFixture, graph: GraphReport) -> None:
    lines = [logged(caplog, CandidateFinished("m", "g", outcome)) for outcome in graph.outcomes]
    assert [level for level, _ in lines] == [
        logging.INFO, logging.INFO, logging.INFO, logging.WARNING, logging.INFO, logging.WARNING
    ]  # fmt: skip
    texts = [text for _, text in lines]
    assert texts[0] == "m/g: original module: 400.0 samples/s at batch size 8 (20.000 ms a call)"
    assert texts[1] == (
        "m/g: ONNX Runtime: built in 2.5 s, relative error 2.5e-07, 800.0 samples/s at batch size 8 (10.000 ms a call)"
    )
    assert texts[3].startswith("m/g: OpenVINO f32: rejected: value differs at output[0, 3]")
    assert texts[4].startswith("m/g: TensorRT: unavailable: tensorrt not installed; run: pip install")
    assert texts[5].startswith("m/g: Inductor AOT: failed in build: no such operator")


def test_the_end_of_a_graph_and_of_a_run(
    caplog: pytest.LogCaptureFixture, graph: GraphReport, report: TuneReport
) -> None:
    level, text = logged(caplog, GraphFinished("m", "g", graph))
    assert (level, text.startswith("m/g: chosen: ONNX Runtime, 1.97 [1.91, 2.03]")) == (logging.INFO, True)
    assert logged(caplog, RunFinished(report)) == (logging.INFO, f"finished: {report.summary()}")


def test_another_logger_can_be_given_and_no_handler_is_added(caplog: pytest.LogCaptureFixture) -> None:
    logger = logging.getLogger("host.tuning")
    with caplog.at_level(logging.DEBUG, logger="host.tuning"):
        LogListener(logger).on_event(Warned("careful"))
    assert caplog.record_tuples == [("host.tuning", logging.WARNING, "careful")]
    assert logger.handlers == logging.getLogger("aitune.tuning").handlers == logging.getLogger("aitune").handlers == []
