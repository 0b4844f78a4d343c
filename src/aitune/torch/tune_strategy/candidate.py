"""Build and check one backend on one graph: plain data in, an outcome out.

A task holds nothing that ties it to this process: the module, the graph and the samples can be sent elsewhere, the
backend is a configuration that was never built, and the outcome holds the state to make the backend again from. The
live backend is handed back as well, for a caller in the same process.
"""

from __future__ import annotations

import copy
import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from aitune.exceptions import ArtifactError
from aitune.torch.backend.backend import Backend
from aitune.torch.backend.registry import registry
from aitune.torch.module.graph_spec import GraphSpec
from aitune.torch.module.interception import Interception
from aitune.torch.module.kept_weights import KeptWeights
from aitune.torch.module.preserved_state import preserved_state
from aitune.torch.module.sample import Sample
from aitune.torch.module.tuned_module import TunedGraph, TunedModule
from aitune.torch.task.accuracy_budget import AccuracyBudget
from aitune.torch.task.correctness import check
from aitune.torch.task.outcome import Agreement, CandidateOutcome
from aitune.torch.task.reference import References
from aitune.utils.error_text import error_reason

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class CandidateTask:
    """What has to be known to evaluate one candidate.

    Args:
        backend: The configuration; it is copied, never built itself.
        module: The original module, without the hooks around it.
        graph_spec: The graph.
        data: Recorded calls of the graph.
        device: Device to run on.
        build_dir: Folder for this build alone; made when needed.
        references: What the answers are compared with; ``None`` leaves the check out.
        accuracy_budget: What a candidate that gives precision away has to keep.
    """

    backend: Backend
    module: torch.nn.Module
    graph_spec: GraphSpec
    data: Sequence[Sample]
    device: torch.device
    build_dir: Path
    references: References | None = None
    accuracy_budget: AccuracyBudget | None = None


@dataclass(frozen=True)
class EvaluatedCandidate:
    """An outcome, and the backend when it came through.

    Args:
        outcome: What was seen.
        backend: The live, active backend; ``None`` when the outcome is not ``"ok"``.
        error: The exception that ended it, for a caller that wants to raise it.
        lost_weights: Names of weights of the user's module that it wrote over.
    """

    outcome: CandidateOutcome
    backend: Backend | None = None
    error: Exception | None = None
    lost_weights: tuple[str, ...] = ()


def describe_candidate(backend: Backend, *, is_baseline: bool = False) -> CandidateOutcome:
    """Return an outcome that says what the candidate is and that nothing was tried yet."""
    return CandidateOutcome(
        backend=backend.name,
        key=backend.key(),
        description=backend.describe(),
        status="skipped",
        stage="availability",
        is_baseline=is_baseline,
        is_exact=backend.is_exact,
        recovery=backend.recovery,
    )


def why_unavailable(task: CandidateTask) -> str | None:
    """Return why a candidate cannot run here, before anything is built; ``None`` when it can be tried."""
    registered = {entry.name for entry in registry.entries}
    missing = registry.unavailable_reason(task.backend.name, task.device) if task.backend.name in registered else None
    if missing is not None:
        return missing
    if task.graph_spec.kept_on_original is not None and not task.backend.runs_original:
        return task.graph_spec.kept_on_original
    return task.backend.can_run(task.module, task.graph_spec, task.device)


def evaluate_candidate(task: CandidateTask, on_stage: Any = None) -> EvaluatedCandidate:
    """Build, activate and check one candidate.

    Args:
        task: What to evaluate.
        on_stage: Called with ``"build"`` and ``"check"`` as they begin.

    Returns:
        The outcome; an exception of the candidate is in it, never raised. ``KeyboardInterrupt`` passes through.
    """
    weights = KeptWeights(task.module)
    try:
        evaluated = _evaluate(task, on_stage, weights)
    finally:
        weights.put_back()
    return _with_weights(evaluated, weights)


def _evaluate(task: CandidateTask, on_stage: Any, weights: KeptWeights) -> EvaluatedCandidate:
    outcome = describe_candidate(task.backend)
    stage = "availability"
    backend: Backend | None = None
    began = time.perf_counter()
    try:
        reason = why_unavailable(task)
        if reason is not None:
            return EvaluatedCandidate(replace(outcome, status="unavailable", reason=reason))
        stage = _announce("build", on_stage)
        backend = _build(task, weights)
        outcome = with_state(replace(outcome, stage="build", build_seconds=time.perf_counter() - began), backend)
        began = time.perf_counter()
        stage = _announce("check", on_stage)
        if task.references is not None:
            agreement = check_backend(backend, task.references, task.accuracy_budget, task.module)
            outcome = replace(outcome, stage="check", agreement=agreement, check_seconds=time.perf_counter() - began)
            if not agreement.passed:
                release(backend)
                return EvaluatedCandidate(replace(outcome, status="rejected", reason=str(agreement.rejection)))
        return EvaluatedCandidate(replace(outcome, status="ok"), backend)
    except Exception as error:
        release(backend)
        return EvaluatedCandidate(failed(outcome, stage, error), error=error)
    except BaseException:
        release(backend)
        raise


def _announce(stage: str, on_stage: Any) -> str:
    if on_stage is not None:
        on_stage(stage)
    return stage


def _build(task: CandidateTask, weights: KeptWeights) -> Backend:
    task.build_dir.mkdir(parents=True, exist_ok=True)
    try:
        with preserved_state(task.module, excused=weights.names), torch.no_grad():
            built = task.backend.fresh().build(task.module, task.graph_spec, task.data, task.device, task.build_dir)
            built.activate()
    finally:
        weights.put_back()
    return built


def _with_weights(evaluated: EvaluatedCandidate, weights: KeptWeights) -> EvaluatedCandidate:
    """Put out a candidate that wrote over weights of the module, and note what others changed and was put back."""
    outcome = evaluated.outcome
    if weights.lost_names:
        release(evaluated.backend)
        reason = f"it writes over the weight {weights.lost_names[0]!r} of the module"
        outcome = replace(outcome, status="rejected", reason=reason, error_type=None)
        return EvaluatedCandidate(outcome, error=evaluated.error, lost_weights=tuple(weights.lost_names))
    if weights.put_back_names:
        note = f"it changed the weight {weights.put_back_names[0]!r} of the module, which was put back"
        return replace(evaluated, outcome=replace(outcome, notes=(*outcome.notes, note)))
    return evaluated


def with_state(outcome: CandidateOutcome, backend: Backend) -> CandidateOutcome:
    """Return the outcome with what the backend can be made again from, and what it notes."""
    notes = tuple(map(str, getattr(backend, "notes", None) or ()))
    try:
        return replace(outcome, state=backend.to_dict(), notes=notes)
    except ArtifactError as error:
        # It can serve here all the same.
        return replace(outcome, notes=(*notes, f"cannot be stored: {error}"))


def check_backend(
    backend: Backend,
    references: References,
    accuracy_budget: AccuracyBudget | None = None,
    module: torch.nn.Module | None = None,
) -> Agreement:
    """Compare an active backend with the references.

    Args:
        backend: The backend.
        references: What the original module answers.
        accuracy_budget: Counts for a backend that gives precision away.
        module: The original module, when the backend may run it: its state is put back after each call.
    """
    budget = None if backend.is_exact else accuracy_budget
    return check(
        backend.infer,
        references,
        budget=budget,
        module=module,
        equal_symbols=backend.equal_symbols,
        survives_bad_indices=backend.survives_bad_indices,
    )


def failed(outcome: CandidateOutcome, stage: str, error: Exception) -> CandidateOutcome:
    """Return the outcome of a candidate that raised."""
    logger.debug("%s failed in %s", outcome.description, stage, exc_info=error)
    reason = error_reason(error)
    return replace(outcome, status="failed", stage=stage, reason=reason, error_type=type(error).__name__)  # type: ignore[arg-type]


def release(backend: Backend | None) -> None:
    """Deactivate a backend that is not needed any more; a failure to do so is logged and costs nothing else."""
    if backend is not None and backend.is_active:
        try:
            backend.deactivate()
        except Exception:
            logger.warning("%s could not be deactivated", backend.describe(), exc_info=True)


def as_served(module: torch.nn.Module, graph_spec: GraphSpec, backend: Backend) -> TunedModule:
    """Put a backend behind the guard that it will be served with, so that what is measured is what a user gets.

    Args:
        module: The original module, without the hooks around it; it is not touched.
        graph_spec: The graph.
        backend: An active backend.

    Returns:
        A tuned module; call it through :attr:`TunedModule.module`.
    """
    interception = Interception(copy.copy(module))
    tuned = TunedModule(interception, graph_spec.forward_signature, [TunedGraph(graph_spec, backend)])
    interception.redirect(tuned.forward)
    return tuned
