"""What is known about why a candidate was not accepted."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from aitune.exceptions import AITuneError, AITuneUserInputError
from aitune.torch.backend.backend import Backend
from aitune.torch.backend.registry import registry
from aitune.torch.module.forward_signature import ForwardSignature
from aitune.torch.module.registry import module_registry
from aitune.torch.task.accuracy_budget import AccuracyBudget
from aitune.torch.task.input_factory import as_call
from aitune.torch.task.outcome import Agreement, CandidateOutcome, GraphReport, Rejection
from aitune.torch.tune_strategy.disagreements import CHECKS_OF_VALUES, disagreements
from aitune.torch.tune_strategy.localize import Divergence, first_divergence
from aitune.utils.printable import printable

# A candidate that gives precision away is wrong everywhere by the rules of rounding; without a limit of the user's this
# error is taken as the one worth finding.
_LOSSY_ERROR = 1e-2


@dataclass(frozen=True)
class Explanation:
    """What is known about why a candidate was not accepted.

    Args:
        candidate: Its description.
        reason: Why it ended as it did.
        failures: The first disagreement of every call that does not agree.
        calls: The calls that were compared.
        patterns: What the failing calls have in common that the others have not.
        divergence: Where it first differs inside of the graph, when that was looked for.
    """

    candidate: str
    reason: str
    failures: tuple[Rejection, ...] = ()
    calls: tuple[str, ...] = ()
    patterns: tuple[str, ...] = ()
    divergence: Divergence | None = None

    def __str__(self) -> str:
        lines = [f"{self.candidate}: {self.reason}"]
        if self.failures:
            lines.append(f"{len(self.failures)} of {len(self.calls)} compared calls disagree:")
            lines += [f"  {failure}" for failure in self.failures]
        lines += [f"Pattern: {pattern}" for pattern in self.patterns]
        if self.divergence is not None:
            lines.append(f"Inside the graph: {self.divergence}")
        elif any(failure.check in CHECKS_OF_VALUES for failure in self.failures):
            lines.append(
                "Inside the graph: not looked at; give the module and a call that disagrees, "
                "explain(candidate, model, inputs)"
            )
        return "\n".join(map(printable, lines))


def explain_outcome(outcome: CandidateOutcome) -> Explanation:
    """Say what the record of a candidate shows: which outputs and calls disagree, and what they have in common.

    Args:
        outcome: The record.
    """
    agreement = outcome.agreement or Agreement(True)
    reason = outcome.reason or ("it was accepted" if outcome.status == "ok" else outcome.status)
    patterns = tuple(_patterns(agreement))
    return Explanation(outcome.description, reason, agreement.failures, agreement.calls, patterns)


def living_module(name: str) -> torch.nn.Module | None:
    """Return the module of a name that is wrapped in this process, if it is alive.

    Args:
        name: Name of the module.
    """
    return next((wrapper.original for wrapper in module_registry().modules() if wrapper.name == name), None)


def explain_kept(name: str, graph: GraphReport, outcome: CandidateOutcome) -> Explanation:
    """Say what the record shows, and where inside of the graph, with the module and call that this process still has.

    Args:
        name: Name of the module.
        graph: The record of the graph.
        outcome: The record of the candidate.
    """
    model, call = living_module(name), disagreements.find(name, graph.graph, outcome)
    if model is None or call is None:
        return explain_outcome(outcome)
    try:
        return localize_outcome(graph, outcome, model, call)
    except AITuneUserInputError as error:
        return replace(explain_outcome(outcome), divergence=Divergence("", "", None, None, 0, str(error)))


def localize_outcome(graph: GraphReport, outcome: CandidateOutcome, model: Any, inputs: Any) -> Explanation:
    """Add to what the record shows where inside of the graph the candidate first differs; it is built anew for that.

    Args:
        graph: The record of the graph.
        outcome: The record of the candidate.
        model: The module, wrapped or not.
        inputs: A call that it gets wrong: a tensor, a tuple of positional arguments or a dict.

    Raises:
        AITuneUserInputError: There is no module, the inputs are no call of it, or the candidate cannot be made again.
    """
    original = getattr(model, "original", model)
    if not isinstance(original, torch.nn.Module):
        raise AITuneUserInputError(f"explain needs the module that was tuned, got {model!r}")
    # A copy shares everything but what a wrapper has put on the module: a tuned forward would be compared with itself.
    module = copy.copy(original)
    args, kwargs = as_call(inputs, "explain: inputs")
    try:
        signature = ForwardSignature.from_callable(module.forward)
        call = signature.to_call(signature.bind(args, kwargs))
    except AITuneError as error:
        raise AITuneUserInputError(f"explain: inputs are no call of {type(module).__name__}: {error}") from error
    budget = None if outcome.is_exact else _budget_of(graph)
    divergence = first_divergence(_backend_of(outcome), module, call, budget=budget)
    return replace(explain_outcome(outcome), divergence=divergence)


def _budget_of(graph: GraphReport) -> AccuracyBudget:
    settings = graph.strategy.get("accuracy_budget")
    limit = settings.get("max_relative_error") if isinstance(settings, Mapping) else None
    return AccuracyBudget(max_relative_error=_LOSSY_ERROR if limit is None else limit)


def _backend_of(outcome: CandidateOutcome) -> Backend:
    """Make the configuration of a candidate again from its record."""
    state = outcome.state or {}
    settings = state.get("config")
    try:
        made: Any = registry.load(outcome.backend)()
        if isinstance(settings, Mapping) and getattr(made, "config", None) is not None:
            made = type(made)(type(made.config).from_dict(settings))
    except AITuneError as error:
        raise AITuneUserInputError(f"{outcome.description} cannot be made again here: {error}") from error
    if made.key() != outcome.key:
        raise AITuneUserInputError(
            f"{outcome.description} cannot be made again from its record: it was {outcome.key}, what can be made is "
            f"{made.key()}"
        )
    backend: Backend = made
    return backend


def _patterns(agreement: Agreement) -> list[str]:
    failing = [failure.where for failure in agreement.failures]
    if not failing:
        return []
    passing = [where for where in agreement.calls if where not in failing]
    patterns = []
    outputs = Counter(failure.output for failure in agreement.failures)
    if len(agreement.failures) > 1 and len(outputs) == 1:
        patterns.append(f"only {next(iter(outputs))} is wrong")
    if passing and all(where.startswith(("corner", "inside")) for where in failing):
        patterns.append("every recorded call agrees; it is wrong only at sizes that were not recorded")
    if passing and all("not contiguous" in where for where in failing):
        patterns.append("it is wrong only for inputs that are not contiguous in memory")
    patterns += _size_patterns(failing, passing)
    return patterns


def _size_patterns(failing: Sequence[str], passing: Sequence[str]) -> list[str]:
    """Compare the sizes that the names of the made-up calls hold."""
    wrong, right = [_sizes_in(w) for w in failing], [_sizes_in(w) for w in passing]
    wrong, right = [sizes for sizes in wrong if sizes], [sizes for sizes in right if sizes]
    if not wrong or not right:
        return []
    patterns = []
    for name in wrong[0]:
        bad, good = {sizes[name] for sizes in wrong}, {sizes[name] for sizes in right}
        if len(bad) == 1 and not bad & good:
            patterns.append(f"the made-up calls that disagree are those with {name}={next(iter(bad))}")
        elif min(bad) > max(good):
            patterns.append(f"the made-up calls that disagree are those with {name} of {min(bad)} and more")
        elif max(bad) < min(good):
            patterns.append(f"the made-up calls that disagree are those with {name} of {max(bad)} and less")
    return patterns


def _sizes_in(where: str) -> dict[str, int]:
    kind, _, rest = where.partition(" ")
    if kind not in ("corner", "inside"):
        return {}
    pairs = (part.rpartition("=") for part in rest.split(", "))
    return {name: int(size) for name, _, size in pairs if size.isdigit()}
