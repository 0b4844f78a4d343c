"""Progress on a terminal."""

from __future__ import annotations

import os
import sys
import threading
from types import TracebackType
from typing import TYPE_CHECKING

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
from aitune.torch.report.wording import graph_sentence, outcome_sentence, shorten

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress, TaskID

_OFF = ("0", "false", "no", "off")
_TIMED_STAGES = ("measure", "playoff")
_STAGE_WORDS = {"build": "building", "check": "checking", "measure": "measuring", "playoff": "playoff"}
_SECONDS_BETWEEN_FRAMES = 0.5


class ConsoleListener:
    """Shows on stderr which candidate is in which stage, and a line for each that is done.

    Nothing is shown when stderr is no terminal, or when ``AITUNE_CONSOLE_OUTPUT`` is 0, false, no or off. Use it as a
    context manager: leaving the block, also through an exception or Ctrl-C, gives the terminal back as it was.

    Args:
        console: Where to draw instead of stderr; drawn on when it is a terminal.
    """

    def __init__(self, console: Console | None = None) -> None:
        self._console = console if console is not None else _terminal()
        self._display: _Display | None = None

    def __enter__(self) -> ConsoleListener:
        if self._console is not None and self._console.is_terminal:
            self._display = _Display(self._console)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        display, self._display = self._display, None
        if display is not None:
            display.close()

    def on_event(self, event: Event) -> None:
        """Show one event; outside the ``with`` block nothing is shown."""
        if self._display is not None:
            self._display.show(event)


def _terminal() -> Console | None:
    """Return a console on stderr when it is a terminal and output is wanted; rich is imported only then."""
    wanted = os.environ.get("AITUNE_CONSOLE_OUTPUT", "1").strip().lower() not in _OFF
    if not wanted or sys.stderr is None or not sys.stderr.isatty():
        return None
    from rich.console import Console

    return Console(stderr=True)


class _Display:
    """The progress line at the bottom, and the lines above it."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._progress = _progress(console)
        self._task: TaskID = self._progress.add_task("starting", total=None)
        self._clock = _Clock(self._progress)
        self._progress.start()
        self._clock.start()

    def close(self) -> None:
        self._clock.stop()
        self._progress.stop()

    def show(self, event: Event) -> None:
        # A redraw while calls are timed would steal time from them.
        self._clock.pause(isinstance(event, CandidateStage) and event.stage in _TIMED_STAGES)
        if isinstance(event, RunStarted):
            self._say(f"recording {', '.join(event.modules)}")
        elif isinstance(event, SampleRecorded):
            self._say(f"recording batch {event.num_batches} of size {event.batch_size}")
        elif isinstance(event, GraphStarted):
            self._print(f"{event.module}/{event.graph}: {event.description}")
            self._progress.reset(self._task, total=len(event.candidates), description=f"{event.module}/{event.graph}")
        elif isinstance(event, CandidateStage):
            self._say(f"{event.module}/{event.graph}: {_STAGE_WORDS[event.stage]} {event.candidate}")
        elif isinstance(event, CandidateFinished):
            self._print(f"  {outcome_sentence(event.outcome)}")
            self._progress.advance(self._task, 0 if event.outcome.is_baseline else 1)
        elif isinstance(event, GraphFinished):
            self._print(f"  -> {graph_sentence(event.report)}")
        elif isinstance(event, Warned):
            self._print(f"warning: {shorten(event.message)}")
        elif isinstance(event, RunFinished):
            self._say("finished")
        self._progress.refresh()

    def _say(self, text: str) -> None:
        self._progress.update(self._task, description=text)

    def _print(self, text: str) -> None:
        # Names and messages are data: brackets in them are not markup.
        self._console.print(text, markup=False, highlight=False, emoji=False)


def _progress(console: Console) -> Progress:
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    return Progress(
        SpinnerColumn(),
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=20),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=console,
        auto_refresh=False,
        transient=True,
        # The streams belong to the host program: they are not replaced.
        redirect_stdout=False,
        redirect_stderr=False,
    )


class _Clock:
    """Redraws now and then so that the elapsed time moves; holds still while calls are timed."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="aitune-progress", daemon=True)
        self._drawing = threading.Lock()
        self._paused = False

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()
        self._thread.join()

    def pause(self, paused: bool) -> None:
        """Stop or go on; once this returns with ``True`` no redraw is under way."""
        with self._drawing:
            self._paused = paused

    def _run(self) -> None:
        while not self._stopped.wait(_SECONDS_BETWEEN_FRAMES):
            with self._drawing:
                if not self._paused:
                    self._progress.refresh()
