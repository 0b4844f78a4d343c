"""Events to the log."""

from __future__ import annotations

import logging

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
from aitune.torch.report.wording import graph_sentence, outcome_sentence, winner_of

_OUTCOME_LEVELS = {"failed": logging.WARNING, "rejected": logging.WARNING}


class LogListener:
    """Writes every event to the logger ``aitune.tuning``; which of them are shown is up to the application.

    A candidate that failed or was wrong, and every warning, is logged at WARNING; milestones at INFO; steps at DEBUG.

    Args:
        logger: Another logger to write to.
    """

    def __init__(self, logger: logging.Logger | None = None) -> None:
        self._logger = logger if logger is not None else logging.getLogger("aitune.tuning")

    def on_event(self, event: Event) -> None:
        """Log one event."""
        level, message = describe_event(event)
        # A message is data: a percent sign in it must not be taken for a format.
        self._logger.log(level, "%s", message)


def describe_event(event: Event) -> tuple[int, str]:
    """Return the level at which an event is logged, and its text.

    Args:
        event: Any event; one of a class that is not known here is shown as it is, at DEBUG.
    """
    if isinstance(event, RunStarted):
        sizes = ", ".join(map(str, event.batch_sizes))
        return logging.INFO, f"tuning {', '.join(event.modules)}; samples at batch sizes {sizes}"
    if isinstance(event, SampleRecorded):
        return logging.DEBUG, f"recorded batch {event.num_batches} of size {event.batch_size}"
    if isinstance(event, GraphStarted):
        candidates = ", ".join(event.candidates) or "none"
        return logging.INFO, f"{_place(event)}: {event.description}; candidates: {candidates}"
    if isinstance(event, CandidateStage):
        return logging.DEBUG, f"{_place(event)}: {event.candidate}: {event.stage}"
    if isinstance(event, CandidateFinished):
        level = _OUTCOME_LEVELS.get(event.outcome.status, logging.INFO)
        return level, f"{_place(event)}: {outcome_sentence(event.outcome)}"
    if isinstance(event, GraphFinished):
        label = "" if winner_of(event.report) is None else "chosen: "
        return logging.INFO, f"{_place(event)}: {label}{graph_sentence(event.report)}"
    if isinstance(event, Warned):
        place = "/".join(part for part in (event.module, event.graph) if part)
        return logging.WARNING, f"{place}: {event.message}" if place else event.message
    if isinstance(event, RunFinished):
        return logging.INFO, f"finished: {event.report.summary()}"
    return logging.DEBUG, repr(event)


def _place(event: GraphStarted | CandidateStage | CandidateFinished | GraphFinished) -> str:
    return f"{event.module}/{event.graph}"
