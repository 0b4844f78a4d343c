"""What happens during a run, as frozen objects handed to listeners.

The engine says what it does; it never prints. Console progress, logging and reports are listeners.
This module knows no torch, so a listener can run anywhere.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal, Protocol

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Event:
    """Something that happened during a run."""


@dataclass(frozen=True)
class RunStarted(Event):
    """A tune call began.

    Args:
        modules: Names of the modules that will be tuned.
        batch_sizes: Batch sizes that samples are recorded at.
    """

    modules: tuple[str, ...]
    batch_sizes: tuple[int, ...]


@dataclass(frozen=True)
class SampleRecorded(Event):
    """One batch of the dataset was run through the user's function."""

    batch_size: int
    num_batches: int


@dataclass(frozen=True)
class GraphStarted(Event):
    """Tuning of one graph of one module began.

    Args:
        module: Name of the module.
        graph: Name of the graph.
        description: The inputs of the graph with their axes, for people.
        candidates: Descriptions of the backends that will be tried, in order.
    """

    module: str
    graph: str
    description: str
    candidates: tuple[str, ...]


@dataclass(frozen=True)
class CandidateStage(Event):
    """A candidate entered a stage of its evaluation."""

    module: str
    graph: str
    candidate: str
    stage: Literal["build", "check", "measure", "playoff"]


@dataclass(frozen=True)
class CandidateFinished(Event):
    """A candidate is done; ``outcome`` is its :class:`aitune.torch.task.outcome.CandidateOutcome`."""

    module: str
    graph: str
    outcome: Any


@dataclass(frozen=True)
class GraphFinished(Event):
    """Tuning of one graph ended; ``report`` is its :class:`aitune.torch.task.outcome.GraphReport`."""

    module: str
    graph: str
    report: Any


@dataclass(frozen=True)
class Warned(Event):
    """Something the user should know that does not stop the run."""

    message: str
    module: str | None = None
    graph: str | None = None


@dataclass(frozen=True)
class RunFinished(Event):
    """A tune call ended; ``report`` is its :class:`aitune.torch.report.tune_report.TuneReport`."""

    report: Any


class Listener(Protocol):
    """Receives every event of a run, in order, on the thread that tunes."""

    def on_event(self, event: Event) -> None:
        """Take note of one event. An exception is logged and does not stop the run."""


class Emitter:
    """Hands events to listeners; a listener that fails is heard no more."""

    def __init__(self, listeners: Iterable[Listener] = ()) -> None:
        self._listeners = list(listeners)

    def emit(self, event: Event) -> None:
        """Hand ``event`` to every listener."""
        for listener in tuple(self._listeners):
            try:
                listener.on_event(event)
            except Exception:
                logger.warning("listener %r failed on %r and is dropped", listener, event, exc_info=True)
                self._listeners.remove(listener)
