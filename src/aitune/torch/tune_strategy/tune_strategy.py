"""The contract of a strategy: it is given a graph and returns the backend that is to run it."""

from __future__ import annotations

import copy
import time
import weakref
from abc import abstractmethod
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from aitune.exceptions import AITuneUserInputError, BackendStateError, CorrectnessError
from aitune.torch.backend.backend import Backend
from aitune.torch.module.graph_spec import GraphSpec
from aitune.torch.module.preserved_state import preserved_state
from aitune.torch.module.sample import Sample
from aitune.torch.task.accuracy_budget import AccuracyBudget
from aitune.torch.task.alternatives import MOST_ALTERNATIVES, alternatives_of
from aitune.torch.task.correctness import metric_of_original
from aitune.torch.task.input_factory import InputFactory
from aitune.torch.task.outcome import Agreement, CandidateOutcome
from aitune.torch.task.reference import References, make_references
from aitune.torch.tune_strategy.build_folder import BuildFolders
from aitune.torch.tune_strategy.candidate import (
    CandidateTask,
    EvaluatedCandidate,
    check_backend,
    describe_candidate,
    evaluate_candidate,
    failed,
    release,
    why_unavailable,
    with_state,
)
from aitune.torch.tune_strategy.context import TuningContext
from aitune.torch.tune_strategy.disagreements import disagreements
from aitune.torch.tune_strategy.graph_job import GraphJob
from aitune.torch.tune_strategy.hook_results import expect_kind, hook_name
from aitune.torch.tune_strategy.run_reporting import RunReporting
from aitune.torch.tune_strategy.strategy_settings import (
    accuracy_settings,
    check_accuracy_arguments,
    plain_settings,
)
from aitune.utils.error_text import error_reason
from aitune.utils.validation import boolean

_CHECK_IS_OFF = "the correctness check is off: nothing proves that the answers are right"
_NO_TIME_TO_MEASURE = "it was built and agrees, but then the time budget was spent before it could be measured"


class TuneStrategy(RunReporting):
    """Finds the backend for a graph.

    :meth:`tune` calls, in this order, :meth:`_configure_for_module`, :meth:`_pre_tune`, :meth:`_tune` and
    :meth:`_post_tune`. A strategy may be used again and again; every run first forgets the one before. It is not made
    for several threads at once. What :meth:`_tune` returns is served only when it agrees with the original module: a
    backend that was not tried as a candidate is compared then.

    Args:
        accuracy_budget: What candidates that give precision away have to keep; without one the run's budget holds.
        input_factory: Makes the calls of wanted sizes that candidates are compared on, as
            ``input_factory({"batch0": 3, "dim0": 17})``: a tensor, a tuple or a dict of arguments; without one the
            run's factory holds, and without that they are made from the recorded calls.

    Raises:
        AITuneUserInputError: An argument is of another kind.
    """

    def __init__(
        self, *, accuracy_budget: AccuracyBudget | None = None, input_factory: InputFactory | None = None
    ) -> None:
        super().__init__()
        check_accuracy_arguments(accuracy_budget, input_factory)
        self._accuracy_budget = accuracy_budget
        self._input_factory = input_factory
        self._correctness_check_enabled = True
        self._folders: BuildFolders | None = None
        self._reset()

    def _reset(self) -> None:
        """Forget the last run."""
        super()._reset()
        self._live: dict[str, Backend] = {}
        self._proven: list[weakref.ref[Backend]] = []

    def _begin_run(self) -> None:
        if not hasattr(self, "_context"):
            raise AITuneUserInputError(f"{hook_name(self, '__init__')} does not call super().__init__(); call it")
        vars(self).pop("_live", None)
        self._reset()
        if "_live" not in vars(self):
            raise AITuneUserInputError(f"{hook_name(self, '_reset')} does not call super()._reset(); call it first")

    def _end_run(self) -> None:
        """Let go of what only the run needed; what was learnt stays."""
        for key in tuple(self._live):
            self._release(key)
        self._references = None
        self._job = None
        self._folders = None

    # -- for callers -----------------------------------------------------------------------------------------------

    def use_context(self, context: TuningContext) -> None:
        """Set the surroundings of the runs to come.

        Args:
            context: The surroundings.
        """
        self._context = context

    def enable_correctness_check(self, enable: bool = True) -> TuneStrategy:
        """Switch the comparison with the original module on or off; off is noted in every report.

        Args:
            enable: Whether candidates are compared.

        Raises:
            AITuneUserInputError: It is no truth value.
        """
        self._correctness_check_enabled = boolean(enable, "enable_correctness_check")
        return self

    def clone(self) -> TuneStrategy:
        """Return a strategy with the same settings that has not run yet."""
        cloned = copy.copy(self)
        cloned._reset()
        return cloned

    def tune(
        self,
        module: torch.nn.Module,
        name: str,
        graph_spec: GraphSpec,
        data: list[Sample],
        device: torch.device,
        cache_dir: Path,
    ) -> Backend:
        """Find the backend for a graph.

        Args:
            module: The original module, in eval mode, without the hooks around it; its state is put back.
            name: Name of the module.
            graph_spec: The graph.
            data: Recorded calls of the graph, at least one.
            device: Device to run on.
            cache_dir: Folder for builds.

        Returns:
            The chosen backend, deployed; it may be the one that runs the original module.

        Raises:
            AITuneUserInputError: There is no data.
            TuningError: No backend could be chosen.
        """
        if not data:
            raise AITuneUserInputError(f"{name} {graph_spec.name}: there is no recorded call to tune with")
        began = time.perf_counter()
        self._begin_run()
        job = self._job = GraphJob(module, name, graph_spec, data, device)
        folders = self._folders = BuildFolders(Path(cache_dir))
        try:
            self._configure_for_module(module)
            self._announce(name, graph_spec)
            with preserved_state(module, excused=self._lost_weights), torch.no_grad():
                self._pre_tune(module, name, graph_spec, data, device, cache_dir)
                self._complete_preparation(job)
                chosen: Any = self._tune(module, name, graph_spec, data, device, cache_dir)
                backend = self._ensure_proven(chosen, job)
                with self._result_stands("_post_tune"):
                    self._post_tune(backend, name, graph_spec, data)
            if not backend.is_active:
                backend.activate()
            backend.deploy(device)
            self._reason = self._reason or f"{hook_name(self, '_tune')} chose it"
            self._live = {key: other for key, other in self._live.items() if other is not backend}
            folders.keep_for(backend.key(), backend)
            self._finish(name, graph_spec, backend, time.perf_counter() - began)
            self._hand_over(backend, folders)
            return backend
        except Exception as error:
            if self.report is None:
                # What was seen until then is the reason, and belongs into the report of the whole run.
                self._reason = error_reason(error)
                self._finish(name, graph_spec, None, time.perf_counter() - began)
            raise
        finally:
            self._end_run()
            folders.remove_others()

    def _hand_over(self, backend: Backend, folders: BuildFolders) -> None:
        """Give the chosen backend what saving it asks for: how it was chosen, and the next best builds."""
        backend.tuning_report = self.report
        for outcome in alternatives_of(self.report, MOST_ALTERNATIVES) if self.report is not None else ():
            folders.keep_for(outcome.key, backend)

    def tune_dry_run(
        self,
        module: torch.nn.Module,
        name: str,
        graph_spec: GraphSpec,
        data: list[Sample],
        device: torch.device,
        cache_dir: Path,
    ) -> list[CandidateOutcome]:
        """Say what would be tried, without building; see :meth:`tune` for the arguments.

        Returns:
            One outcome a candidate: skipped when it would be tried, unavailable with the reason when not.
        """
        self._begin_run()
        self._configure_for_module(module)
        self._announce(name, graph_spec)
        job = GraphJob(module, name, graph_spec, data, device)
        for backend in self._candidates():
            task = CandidateTask(backend, module, graph_spec, data, device, Path(cache_dir))
            outcome, reason = describe_candidate(backend), why_unavailable(task)
            unavailable = replace(outcome, status="unavailable", reason=reason)
            self._record(job, replace(outcome, reason="dry run") if reason is None else unavailable)
        self._reason = "dry run: nothing was built"
        self._finish(name, graph_spec, None, 0.0)
        return self.backend_results

    def check_correctness(self, backend: Backend, name: str, graph_spec: GraphSpec, data: list[Sample]) -> Agreement:
        """Compare an active backend with the original module; :meth:`tune` must be running.

        Args:
            backend: The backend.
            name: Name of the module.
            graph_spec: The graph.
            data: Recorded calls of the graph.

        Raises:
            AITuneUserInputError: No run is under way, so there is nothing to compare with.
        """
        if self._references is None:
            raise AITuneUserInputError(f"{name} {graph_spec.name}: check_correctness works only while tune is running")
        module = None if self._job is None else self._job.module
        return check_backend(backend, self._references, self._budget, module)

    def to_json_dict(self) -> dict[str, Any]:
        """Return every setting that is needed to repeat the run, as plain data."""
        return {
            "strategy": type(self).__name__,
            "correctness_check": self._correctness_check_enabled,
            "accuracy_budget": accuracy_settings(self._budget),
            "input_factory": plain_settings(self._input_factory or self._context.input_factory),
        }

    # -- hooks -----------------------------------------------------------------------------------------------------

    def _configure_for_module(self, module: torch.nn.Module) -> None:
        """Adapt to a kind of module before anything else is asked."""

    def _pre_tune(
        self,
        module: torch.nn.Module,
        name: str,
        graph_spec: GraphSpec,
        data: list[Sample],
        device: torch.device,
        cache_dir: Path,
    ) -> None:
        """Prepare the run: the reference outputs that candidates are compared with."""
        self._prepare_references(module, name, graph_spec, data)

    def _complete_preparation(self, job: GraphJob) -> None:
        """Make up for what a subclass's own :meth:`_pre_tune` left out and the choice cannot do without."""
        if self._references is None and _CHECK_IS_OFF not in self._warnings:
            self._prepare_references(job.module, job.name, job.graph_spec, job.samples)

    def _prepare_references(
        self, module: torch.nn.Module, name: str, graph_spec: GraphSpec, data: list[Sample]
    ) -> None:
        if not self._correctness_check_enabled:
            self._warn(name, graph_spec, _CHECK_IS_OFF)
            return
        factory = self._input_factory or self._context.input_factory
        self._references = make_references(module, graph_spec, data, seed=self._context.seed, input_factory=factory)
        self._try_metric(name, graph_spec, self._references)

    def _try_metric(self, name: str, graph_spec: GraphSpec, references: References) -> None:
        """Compute the user's metric once before anything is built, so that one that does not work is an error now."""
        budget = self._budget
        best = None if budget is None else metric_of_original(references, budget)
        if budget is not None and best is not None and budget.min_metric is not None and best < budget.min_metric:
            self._warn(
                name,
                graph_spec,
                f"the metric of the original module against itself is {best:.6g}, less than the "
                f"{budget.min_metric:.6g} that is required, so a candidate that gives precision away can hardly pass",
            )

    @abstractmethod
    def _tune(
        self,
        module: torch.nn.Module,
        name: str,
        graph_spec: GraphSpec,
        data: list[Sample],
        device: torch.device,
        cache_dir: Path,
    ) -> Backend:
        """Return the chosen backend, built; see :meth:`tune` for the arguments."""

    def _post_tune(self, backend: Backend | None, name: str, graph_spec: GraphSpec, data: list[Sample]) -> None:
        """Look at the choice before the run ends."""

    # -- for subclasses --------------------------------------------------------------------------------------------

    @property
    def _budget(self) -> AccuracyBudget | None:
        return self._accuracy_budget or self._context.accuracy_budget

    def _evaluate(self, backend: Backend, job: GraphJob) -> EvaluatedCandidate:
        """Build and check one candidate, and tell the listeners."""
        task = CandidateTask(
            backend, job.module, job.graph_spec, job.data, job.device,
            self._make_folder(backend.key()), self._references, self._budget,
        )  # fmt: skip
        evaluated = evaluate_candidate(task, lambda stage: self._say_stage(job, backend.describe(), stage))
        self._warn_of_lost_weights(job, evaluated.outcome, evaluated.lost_weights)
        disagreements.keep(job.name, job.graph_spec.name, evaluated.outcome, self._references)
        if evaluated.backend is not None and self._context.is_over():
            release(evaluated.backend)
            evaluated = EvaluatedCandidate(replace(evaluated.outcome, status="skipped", reason=_NO_TIME_TO_MEASURE))
        if evaluated.backend is not None:
            self._live[evaluated.outcome.key] = evaluated.backend
            if evaluated.outcome.agreement is not None:
                self._accept(evaluated.backend)
        self._record(job, evaluated.outcome, finished=evaluated.backend is None)
        return evaluated

    def _make_folder(self, key: str) -> Path:
        assert self._folders is not None, "folders are made only during a run"
        return self._folders.make(key)

    def _release(self, key: str) -> None:
        release(self._live.pop(key, None))

    # -- what is served --------------------------------------------------------------------------------------------

    def _accept(self, backend: Backend) -> None:
        """Remember that a backend was compared, or is the original module itself."""
        self._proven.append(weakref.ref(backend))

    def _ensure_proven(self, chosen: Any, job: GraphJob) -> Backend:
        """Return the choice of :meth:`_tune`, compared with the original module where that was not done before."""
        hook = hook_name(self, "_tune")
        backend = expect_kind(chosen, Backend, hook, "the backend that is to serve the graph, built")
        if any(proven() is backend for proven in self._proven):
            return backend
        key = self._key_of(backend)
        tried = self._outcomes.get(key)
        outcome = replace(tried or describe_candidate(backend), key=key, status="ok", reason=None, error_type=None)
        if self._live.get(key) is not backend:
            self._release(key)
        self._live[key] = backend  # what serves nothing in the end is let go of at the end of the run
        try:
            if not backend.is_active:
                backend.activate()
            if self._correctness_check_enabled:
                self._complete_preparation(job)
                began = time.perf_counter()
                agreement = self._agreement_of(backend, job)
                seconds = time.perf_counter() - began
                outcome = replace(outcome, stage="check", agreement=agreement, check_seconds=seconds)
        except BackendStateError as error:
            raise AITuneUserInputError(f"{hook} returned a backend that cannot be run: {error}") from error
        except Exception as error:
            self._record(job, failed(outcome, "check", error))
            raise CorrectnessError(
                f"{hook} returned {backend.describe()}, which was not tried as a candidate and fails when it is "
                f"compared with the original module: {type(error).__name__}: {error}"
            ) from error
        if outcome.agreement is not None and not outcome.agreement.passed:
            rejection = str(outcome.agreement.rejection)
            self._record(job, replace(outcome, status="rejected", reason=rejection))
            raise CorrectnessError(
                f"{hook} returned {backend.describe()}, which was not tried as a candidate and answers otherwise than "
                f"the original module: {rejection}; return a candidate that came through, or the original's backend"
            )
        self._record(job, with_state(outcome, backend))
        return backend

    def _agreement_of(self, backend: Backend, job: GraphJob) -> Agreement:
        assert self._references is not None
        return check_backend(backend, self._references, self._budget, job.module)
