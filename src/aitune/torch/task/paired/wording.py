"""The verdict of a duel in words."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from aitune.torch.task.outcome import TOO_FEW_PAIRS, is_too_wide
from aitune.torch.task.paired.duel import Decision, Duel
from aitune.torch.task.paired.steadiness import Steadiness, half_width, is_wide


@dataclass(frozen=True)
class Circumstances:
    """What surrounded a comparison.

    Args:
        seconds: Time that it took.
        budget_seconds: Time that it was given.
        others_share: Share of the machine's cores that other processes used; ``None`` where it is not known.
        num_threads: Threads that a call may use.
        ended_early: Why a duel was given up before its end, where it was.
    """

    seconds: float
    budget_seconds: float
    others_share: float | None
    num_threads: int
    ended_early: str | None = None


def explain(duel: Duel, decision: Decision, around: Circumstances, names: Mapping[str, str]) -> str:
    """Say what was decided and why; for an undecided duel also what would decide it.

    Args:
        duel: The duel.
        decision: What it ended with.
        around: What surrounded it.
        names: What people call each contestant, by key.
    """
    candidate, opponent = names[duel.candidate], names[duel.opponent]
    interval = decision.interval
    ratio = math.exp(interval.estimate)
    span = f"{ratio:.3f} ({math.exp(interval.low):.3f} to {math.exp(interval.high):.3f})"
    noise = _noise_of_decided(duel, decision, around)
    if decision.verdict == "faster":
        return f"{candidate} is {ratio:.2f} x as fast as {opponent}: ratio {span}{noise}"
    if decision.verdict == "slower":
        return f"{candidate} is slower than {opponent}: ratio {span}{noise}"
    if decision.verdict == "tie":
        return f"no difference above {decision.margin:.0%} between {candidate} and {opponent}: ratio {span}{noise}"
    known = TOO_FEW_PAIRS if is_too_wide(math.exp(interval.low), math.exp(interval.high)) else f"ratio {span}"
    if around.ended_early is not None:
        return f"undecided, {known}: {around.ended_early}"
    return (
        f"undecided after {around.seconds:.1f} s, {known}: {_noise(duel, around)}; "
        f"to decide it: {_advice(duel, around)}"
    )


def _noise_of_decided(duel: Duel, decision: Decision, around: Circumstances) -> str:
    """Say of a verdict that stands how well the ratio is known, where that is not well."""
    if not is_wide(decision.interval):
        return ""
    advice = _advice(duel, around)
    seen = "; ".join(Steadiness.of(duel.opponent_blocks).describe())
    return (
        f"; this machine was noisy: the ratio is known to ±{half_width(decision.interval):.0%} only"
        f"{f' ({seen})' if seen else ''}; to narrow it: {advice}"
    )


def _noise(duel: Duel, around: Circumstances) -> str:
    parts = [f"{duel.clean_pairs} of {duel.pairs} pairs of blocks were undisturbed"]
    if around.others_share is not None:
        parts.append(f"other processes used {around.others_share:.0%} of the cores")
    return ", ".join([*parts, *Steadiness.of(duel.opponent_blocks).describe()])


def _advice(duel: Duel, around: Circumstances) -> str:
    advice = []
    if duel.clean_pairs < duel.pairs:
        advice.append("stop other work on this machine")
        if around.num_threads > 1:
            advice.append("use one thread")
    advice.append(f"give more time than {around.budget_seconds:.0f} s")
    return ", or ".join(advice)
