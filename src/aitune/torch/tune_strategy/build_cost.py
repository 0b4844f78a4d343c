"""What it will cost to try a candidate, so that one that cannot end in time is not begun."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from aitune.torch.task.outcome import CandidateOutcome

USUAL_BUILD_SECONDS = {
    "TorchEager": 0.1,
    "ONNXRuntime": 3.0,
    "OpenVINO": 3.0,
    "TorchInductorJit": 20.0,
    "TorchInductorAot": 25.0,
}
"""Seconds to build a small model on two cores of a server; only the proportions matter once something was built."""

OTHER_BUILD_SECONDS = 20.0
"""The same for a backend that is not in the table."""

USUAL_TRIAL_SECONDS = 3.0
"""Seconds to check and measure a candidate, until one was."""

_SHORTEST_BUILD = 0.05


def predict_seconds(backend: str, seen: Sequence[CandidateOutcome]) -> float:
    """Predict how long it takes to build, check and measure a candidate.

    A backend that was built in this run (with other options) is expected to take what it took. Others are expected to
    take their usual time, at the pace that this run's builds had against theirs.

    Args:
        backend: Registry name of the backend.
        seen: Outcomes of this run.
    """
    built = [outcome for outcome in seen if not outcome.is_baseline and outcome.build_seconds > _SHORTEST_BUILD]
    own = [outcome.build_seconds for outcome in built if outcome.backend == backend]
    if own:
        build = max(own)
    else:
        paces = [outcome.build_seconds / _usual(outcome.backend) for outcome in built]
        build = _usual(backend) * (statistics.median(paces) if paces else 1.0)
    ended = [outcome for outcome in seen if outcome.status == "ok" and not outcome.is_baseline]
    trials = [outcome.check_seconds + outcome.measure_seconds for outcome in ended]
    return build + (statistics.median(trials) if trials else USUAL_TRIAL_SECONDS)


def why_no_time(backend: str, seen: Sequence[CandidateOutcome], seconds_left: float | None) -> str | None:
    """Say why a candidate is not begun; ``None`` when it is expected to end in time.

    Args:
        backend: Registry name of the backend.
        seen: Outcomes of this run.
        seconds_left: What is left of the time budget; ``None`` when there is none.
    """
    if seconds_left is None:
        return None
    needed = predict_seconds(backend, seen)
    if needed <= seconds_left:
        return None
    left = max(seconds_left, 0.0)
    return f"not begun: it would take about {needed:.0f} s, and {left:.0f} s of the time budget are left"


def _usual(backend: str) -> float:
    return USUAL_BUILD_SECONDS.get(backend, OTHER_BUILD_SECONDS)
