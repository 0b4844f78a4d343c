import io
import subprocess
import sys
import threading

import pytest
from rich.console import Console

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
from aitune.torch.report.console import ConsoleListener
from aitune.torch.report.tune_report import TuneReport
from aitune.torch.task.outcome import GraphReport

SHOW_CURSOR, HIDE_CURSOR = "\x1b[?25h", "\x1b[?25l"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def console_on(stream: io.StringIO, terminal: bool) -> Console:
    return Console(file=stream, force_terminal=terminal, width=200, color_system=None)


def progress_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "aitune-progress"]


@pytest.fixture
def events(graph: GraphReport, report: TuneReport) -> list[Event]:
    return [
        RunStarted(("encoder",), (1, 8)),
        SampleRecorded(1, 4),
        GraphStarted("encoder", "graph0", "x: float32[batch0]", ("original [module]", "ONNX Runtime")),
        CandidateStage("encoder", "graph0", "ONNX Runtime", "build"),
        CandidateStage("encoder", "graph0", "ONNX Runtime", "check"),
        CandidateStage("encoder", "graph0", "ONNX Runtime", "measure"),
        *(CandidateFinished("encoder", "graph0", outcome) for outcome in graph.outcomes),
        CandidateStage("encoder", "graph0", "ONNX Runtime", "playoff"),
        GraphFinished("encoder", "graph0", graph),
        Warned("take [care]"),
        RunFinished(report),
    ]


def test_a_terminal_shows_stages_outcomes_and_warnings(events: list[Event]) -> None:
    stream = io.StringIO()
    with ConsoleListener(console_on(stream, terminal=True)) as listener:
        for event in events:
            listener.on_event(event)
    text = stream.getvalue()
    for part in (
        "recording encoder",
        "recording batch 4 of size 1",
        "encoder/graph0: x: float32[batch0]",
        "building ONNX Runtime",
        "checking ONNX Runtime",
        "measuring ONNX Runtime",
        "playoff ONNX Runtime",
        "ONNX Runtime: built in 2.5 s",
        "OpenVINO f32: rejected: value differs at output[0, 3]",
        'TensorRT: unavailable: tensorrt not installed; run: pip install "aitune-open[tensorrt]"',
        "-> ONNX Runtime, 1.97 [1.91, 2.03]",
        "warning: take [care]",
    ):
        assert part in text


def test_no_terminal_no_output(events: list[Event]) -> None:
    stream = io.StringIO()
    with ConsoleListener(console_on(stream, terminal=False)) as listener:
        for event in events:
            listener.on_event(event)
        assert not progress_threads()
    assert stream.getvalue() == ""


def test_outside_the_block_nothing_is_shown(events: list[Event]) -> None:
    stream = io.StringIO()
    listener = ConsoleListener(console_on(stream, terminal=True))
    listener.on_event(events[0])
    assert stream.getvalue() == ""
    with listener:
        pass
    before = stream.getvalue()
    listener.on_event(events[0])
    assert stream.getvalue() == before


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, ValueError])
def test_the_terminal_is_given_back_after_an_exception(events: list[Event], error: type[BaseException]) -> None:
    stream = io.StringIO()

    def fail() -> None:
        with ConsoleListener(console_on(stream, terminal=True)) as listener:
            for event in events[:5]:
                listener.on_event(event)
            assert len(progress_threads()) == 1
            raise error

    with pytest.raises(error):
        fail()
    assert not progress_threads()
    assert HIDE_CURSOR in stream.getvalue()
    assert stream.getvalue().rindex(SHOW_CURSOR) > stream.getvalue().rindex(HIDE_CURSOR)


def test_the_streams_of_the_host_are_left_alone(events: list[Event]) -> None:
    out, err = sys.stdout, sys.stderr
    with ConsoleListener(console_on(io.StringIO(), terminal=True)) as listener:
        listener.on_event(events[0])
        assert (sys.stdout, sys.stderr) == (out, err)


def test_nothing_is_redrawn_by_itself_while_calls_are_timed(events: list[Event]) -> None:
    stream = io.StringIO()
    with ConsoleListener(console_on(stream, terminal=True)) as listener:
        for stage in ("measure", "playoff"):
            listener.on_event(CandidateStage("encoder", "graph0", "ONNX Runtime", stage))
            drawn = stream.getvalue()
            threading.Event().wait(1.2)
            assert stream.getvalue() == drawn
        listener.on_event(CandidateStage("encoder", "graph0", "ONNX Runtime", "build"))
        drawn = stream.getvalue()
        for _ in range(200):
            if stream.getvalue() != drawn:
                break
            threading.Event().wait(0.1)
        assert stream.getvalue() != drawn


@pytest.mark.parametrize(("value", "shown"), [("0", False), ("False", False), ("off", False), ("1", True), ("", True)])
def test_the_environment_switches_the_output_off(
    monkeypatch: pytest.MonkeyPatch, events: list[Event], value: str, shown: bool
) -> None:
    stream = Terminal()
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setenv("AITUNE_CONSOLE_OUTPUT", value)
    monkeypatch.setenv("TERM", "xterm")
    with ConsoleListener() as listener:
        listener.on_event(events[0])
    assert (stream.getvalue() != "") == shown


def test_without_a_terminal_rich_is_not_even_imported() -> None:
    code = (
        "import sys; from aitune.torch.report.console import ConsoleListener; from aitune.events import Warned\n"
        "with ConsoleListener() as listener: listener.on_event(Warned('careful'))\n"
        "print('rich' in sys.modules)"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert (result.stdout.strip(), result.stderr) == ("False", "")
