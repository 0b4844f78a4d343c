"""Why a graph ended as it did: one short sentence, in words that need no other part of the report."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

from aitune.torch.backend.backend import Backend
from aitune.torch.task.outcome import TOO_FEW_PAIRS, CandidateOutcome, PairedComparison
from aitune.torch.tune_strategy.selection import verdict_between

_NOTABLE_WIDTH = 0.05
"""From here on it is said how little is known: half the width of an interval, as a share of the ratio."""


def why_nothing_is_left(outcomes: Iterable[CandidateOutcome], listed: Iterable[Backend] = ()) -> str:
    """Say why no backend could be chosen: every candidate with its reason.

    Args:
        outcomes: What was seen, the baseline included.
        listed: The backends that were to be tried.
    """
    candidates = [outcome for outcome in outcomes if not outcome.is_baseline]
    if not candidates and (untried := _untried(listed)):
        return untried
    if not candidates:
        return (
            "there is no candidate: the list of backends is empty, and the original module may not win; give "
            "backends, or enable_performance_validation()"
        )
    reasons = "; ".join(f"{outcome.description}: {outcome.status}, {outcome.reason}" for outcome in candidates)
    return f"no candidate is left to choose from: {reasons}"


def why_none_came_through(outcomes: Iterable[CandidateOutcome], listed: Iterable[Backend] = ()) -> str:
    """Say in a few words why the original module stays without a candidate to compare it with.

    Args:
        outcomes: What was seen, the baseline included.
        listed: The backends that were to be tried.
    """
    candidates = [outcome for outcome in outcomes if not outcome.is_baseline]
    if not candidates:
        return _untried(listed) or "the list of candidates is empty"
    good = [outcome.description for outcome in candidates if outcome.status == "ok"]
    if good:
        return f"none is better of the candidates that came through: {', '.join(good)}"
    if all(outcome.status == "skipped" for outcome in candidates):
        return "the time budget left no time for any candidate"
    return "no candidate came through"


def _untried(listed: Iterable[Backend]) -> str:
    """Name candidates that a strategy's own way of running them left out."""
    names = ", ".join(backend.describe() for backend in listed)
    return f"_run_backends returned none, and tried none of the candidates: {names}" if names else ""


def explain_win(
    winner: str, runner_up: str | None, comparisons: Iterable[PairedComparison], names: Mapping[str, str]
) -> str:
    """Say why a candidate was chosen that is faster than the original module.

    Args:
        winner: Its key.
        runner_up: Key of the next best candidate that is faster than the original as well, if there is one.
        comparisons: Paired comparisons.
        names: What each key is called.
    """
    text = "clearly faster than the original module"
    return text if runner_up is None else f"{text}, and {_against(winner, runner_up, comparisons, names)}"


def explain_best(
    winner: str, runner_up: str | None, comparisons: Iterable[PairedComparison], names: Mapping[str, str]
) -> str:
    """Say why a candidate was chosen where the original module has no say; see :func:`explain_win`."""
    if runner_up is None:
        return "the only candidate that came through"
    return _against(winner, runner_up, comparisons, names)


def explain_kept(
    candidates: Sequence[str], baseline: str, comparisons: Iterable[PairedComparison], names: Mapping[str, str]
) -> str:
    """Say why the original module stays.

    Args:
        candidates: Keys of the candidates that were measured.
        baseline: Key of the original module.
        comparisons: Paired comparisons.
        names: What each key is called.
    """
    against = [c for c in comparisons if c.opponent == baseline and c.candidate in candidates]
    if not against:
        return "no candidate is clearly faster" if candidates else "no candidate came through"
    best = max(against, key=lambda c: (c.is_informative, c.was_measured, c.speedup))
    if not best.was_measured:
        return "no candidate was compared with it side by side: the time for that was up"
    if not best.is_informative:
        return "no candidate is known to be faster: side by side with it there was time for too few pairs to know"
    span = f"{best.speedup:.2f} ({best.low:.2f} to {best.high:.2f}) times its speed"
    name = names[best.candidate]
    if best.verdict == "undecided":
        return f"whether {name} is faster could not be decided: it runs at {span}"
    return f"no candidate is clearly faster: the best, {name}, runs at {span}"


def warning_of_noise(comparisons: Iterable[PairedComparison], baseline: str) -> str | None:
    """Say that no speed-up is known well; ``None`` when one is, or nothing was compared.

    Args:
        comparisons: Paired comparisons.
        baseline: Key of the original module.
    """
    measured = [c for c in comparisons if c.was_measured and c.opponent == baseline]
    if measured and not any(c.is_informative for c in measured):
        return f"speed-ups are not known, {TOO_FEW_PAIRS}: give more time, or record smaller batches"
    width = min((math.sqrt(c.high / c.low) - 1.0 for c in measured if c.is_informative), default=0.0)
    if width <= _NOTABLE_WIDTH:
        return None
    return (
        f"this machine was noisy: every speed-up is known to ±{width:.0%} at best; to narrow it, stop other work on "
        f"it, use fewer threads, or give more time"
    )


def _against(winner: str, runner_up: str, comparisons: Iterable[PairedComparison], names: Mapping[str, str]) -> str:
    listed = list(comparisons)
    verdict = verdict_between(winner, runner_up, listed)
    other = names[runner_up]
    if verdict == "faster":
        comparison = next(c for c in listed if {c.candidate, c.opponent} == {winner, runner_up})
        ratio = comparison.speedup if comparison.candidate == winner else 1.0 / comparison.speedup
        return f"{ratio:.2f} times as fast as {other}, the next best"
    if verdict == "tie":
        return f"as fast as {other}, which comes later in the list"
    if verdict == "undecided":
        return f"not clearly slower than {other}, which comes later in the list"
    return f"better than {other} by its own measurements"
