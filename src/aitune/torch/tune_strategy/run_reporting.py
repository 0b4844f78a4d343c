"""What a strategy says of itself and of a run: its description, events, warnings, outcomes, and its report."""

from __future__ import annotations

import json
import logging
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal

from aitune.events import CandidateFinished, CandidateStage, GraphFinished, GraphStarted, Warned
from aitune.torch.backend.backend import Backend
from aitune.torch.module.graph_spec import GraphSpec
from aitune.torch.task.outcome import BatchMeasurement, CandidateOutcome, GraphReport, PairedComparison
from aitune.torch.task.reference import References
from aitune.torch.tune_strategy.context import TuningContext
from aitune.torch.tune_strategy.graph_job import GraphJob
from aitune.torch.tune_strategy.hook_results import expect_kind, expect_texts, hook_name

logger = logging.getLogger(__name__)

Activity = Literal["build", "check", "measure", "playoff"]
"""What a candidate is going through, as listeners are told."""


class RunReporting(ABC):
    """Collects what a run sees, tells the listeners, and sums it up in a report."""

    def __init__(self) -> None:
        self._context = TuningContext()

    def _reset(self) -> None:
        """Forget the last run."""
        self._references: References | None = None
        self._outcomes: dict[str, CandidateOutcome] = {}
        self._comparisons: list[PairedComparison] = []
        self._warnings: list[str] = []
        self._reason = ""
        self._measurements: dict[str, tuple[BatchMeasurement, ...]] = {}
        self._job: GraphJob | None = None
        self._lost_weights: set[str] = set()
        self.report: GraphReport | None = None

    @property
    def backend_results(self) -> list[CandidateOutcome]:
        """What the last run saw of every candidate: the original, then the others in the order of the list."""
        return list(self._outcomes.values())

    def describe(self) -> str:
        """Return a short text for people."""
        return "\n".join(expect_texts(self._describe_parts(), hook_name(self, "_describe_parts")))

    def _describe_parts(self) -> list[str]:
        """Return the lines of the description."""
        return [type(self).__name__]

    @abstractmethod
    def to_json_dict(self) -> dict[str, Any]:
        """Return every setting that is needed to repeat the run, as plain data."""

    @abstractmethod
    def _candidates(self) -> Sequence[Backend]:
        """Return the backends that will be tried, in order, never built."""

    def _key_of(self, backend: Backend) -> str:
        """Return the key of a backend in the report."""
        return backend.key()

    @property
    def _reference_seconds(self) -> float:
        """Time of running the original for what the candidates are compared with."""
        return 0.0 if self._references is None else self._references.seconds

    # -- on the way ------------------------------------------------------------------------------------------------

    def _log(self, message: str) -> None:
        logger.info("%s", message)

    def _announce(self, name: str, graph_spec: GraphSpec) -> None:
        candidates = tuple(backend.describe() for backend in self._candidates())
        self._context.emitter.emit(GraphStarted(name, graph_spec.name, graph_spec.describe(), candidates))

    def _say_stage(self, job: GraphJob, candidate: str, activity: Activity) -> None:
        self._context.emitter.emit(CandidateStage(job.name, job.graph_spec.name, candidate, activity))

    def _record(self, job: GraphJob, outcome: CandidateOutcome, *, finished: bool = True) -> None:
        self._outcomes[outcome.key] = outcome
        if finished:
            self._context.emitter.emit(CandidateFinished(job.name, job.graph_spec.name, outcome))

    def _keep_measurements(self, backend: Backend, measurements: Sequence[BatchMeasurement]) -> None:
        """Let the report hold what was measured; also of a backend that fails in the end."""
        self._measurements[self._key_of(backend)] = tuple(measurements)

    def _warn(self, name: str, graph_spec: GraphSpec, message: str) -> None:
        self._warnings.append(message)
        self._context.emitter.emit(Warned(message, name, graph_spec.name))

    def _warn_of_lost_weights(self, job: GraphJob, outcome: CandidateOutcome, names: Sequence[str]) -> None:
        """Name a candidate that wrote over weights of the user's module: nothing has them any more."""
        if names:
            self._lost_weights.update(names)
            others = f" and {len(names) - 1} more" if len(names) > 1 else ""
            message = (
                f"{outcome.description} writes over the weight {names[0]!r}{others} of the module, which cannot be "
                f"undone: load the weights of {job.name} again (load_state_dict), and tune it without this candidate"
            )
            self._warn(job.name, job.graph_spec, message)

    @contextmanager
    def _result_stands(self, hook: str) -> Iterator[None]:
        """Run a hook that only says something; what it raises is warned of once, and the result stands.

        Args:
            hook: Name of the method.
        """
        try:
            yield
        except Exception as error:
            logger.debug("%s failed", hook_name(self, hook), exc_info=error)
            message = f"{hook_name(self, hook)} raised {type(error).__name__}: {error}; the result stands without it"
            if self._job is not None and message not in self._warnings:
                self._warn(self._job.name, self._job.graph_spec, message)

    # -- at the end ------------------------------------------------------------------------------------------------

    def _settings(self) -> dict[str, Any]:
        """Return the settings for the report; those of a subclass that are no plain data cost no result."""
        settings: Any = {}
        with self._result_stands("to_json_dict"):
            settings = expect_kind(self.to_json_dict(), dict, hook_name(self, "to_json_dict"), "a dict of plain data")
            json.dumps(settings)
            return dict(settings)
        plain = {name: each for name, each in settings.items() if _is_plain(each)}
        return {"strategy": type(self).__name__, **plain}

    def _finish(self, name: str, graph_spec: GraphSpec, backend: Backend | None, seconds: float) -> None:
        settings = self._settings()
        outcomes = sorted(self._outcomes.values(), key=lambda outcome: not outcome.is_baseline)
        self.report = GraphReport(
            module=name,
            graph=graph_spec.name,
            description=graph_spec.describe(),
            strategy=settings,
            outcomes=tuple(outcomes),
            comparisons=tuple(self._comparisons),
            winner=None if backend is None else self._key_of(backend),
            reason=self._reason,
            seconds=seconds,
            warnings=tuple(self._warnings),
            reference_seconds=self._reference_seconds,
            axes=graph_spec.axis_evidence,
        )
        self._context.emitter.emit(GraphFinished(name, graph_spec.name, self.report))


def _is_plain(value: Any) -> bool:
    try:
        json.dumps(value)
    except (TypeError, ValueError, RecursionError):
        return False
    return True
