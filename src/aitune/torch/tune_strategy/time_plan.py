"""Whether a time budget leaves room for anything, before the first candidate is thought of."""

from __future__ import annotations

import torch

from aitune.torch.module.sample import Sample
from aitune.torch.task.machine import Machine
from aitune.torch.task.playoff import SCREEN_SECONDS
from aitune.torch.task.timed_call import copy_sample

LEAST_CALLS = 15
"""Calls of the original module that it takes at least to prove and to measure one candidate: some eight for what it is
compared with, two to measure the original, and what the candidate itself needs."""

_SHORTEST_SCREEN = 1.0
_SCREEN_SHARE = 0.1


def why_too_slow(module: torch.nn.Module, sample: Sample, machine: Machine, seconds_left: float | None) -> str | None:
    """Say why no candidate can be tried within what is left; ``None`` when some may be.

    One call of the original is made, and only where there is a time budget.

    Args:
        module: The original module.
        sample: One of the recorded calls.
        machine: Whose clock is read.
        seconds_left: What is left of the time budget; ``None`` when there is none.
    """
    if seconds_left is None:
        return None
    if seconds_left <= 0:
        return "not begun: 0 s of the time budget are left"
    call = copy_sample(sample)
    begin = machine.now()
    with torch.no_grad():
        module(*call.args, **call.kwargs)
    seconds = machine.now() - begin
    left = max(seconds_left - seconds, 0.0)
    if LEAST_CALLS * seconds <= left:
        return None
    return (
        f"not begun: to prove and to measure a candidate takes the time of about {LEAST_CALLS} calls of the original "
        f"module, {seconds:.1f} s each, and {left:.0f} s of the time budget are left"
    )


def screen_seconds(seconds_left: float | None) -> float:
    """Return how long a first comparison with the original may take.

    Args:
        seconds_left: What is left of the time budget; ``None`` when there is none.
    """
    if seconds_left is None:
        return SCREEN_SECONDS
    # One more candidate is worth more than to know by how much this one is faster.
    return min(SCREEN_SECONDS, max(_SHORTEST_SCREEN, _SCREEN_SHARE * seconds_left))
