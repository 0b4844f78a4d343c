"""What it will cost to try a candidate, so that cheap ones come first and one that cannot end in time is not begun."""

from __future__ import annotations

import importlib
import statistics
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

import torch

from aitune.torch.backend.backend import Backend
from aitune.torch.task.outcome import CandidateOutcome
from aitune.torch.task.playoff import SCREEN_SECONDS
from aitune.torch.tune_strategy.cost_history import CostHistory

USUAL_TRIAL_SECONDS = 3.0
"""Seconds to check and measure a candidate, until one was."""

_CHECK_SHARE = 0.5
"""Share of the time for the original's answers that it takes to compare a candidate with them."""

CHEAP_SECONDS = 8.0
"""Builds up to this are as cheap as each other: to check and to measure costs as much, whatever was built."""

_SHORTEST_BUILD = 0.05


@dataclass(frozen=True)
class UsualCost:
    """What a build takes on two cores of a server; only the proportions matter once something was built.

    Args:
        fixed: Seconds for any model.
        per_part: Seconds for each layer.
        per_megabyte: Seconds for each megabyte of weights.
        packages: Modules that the first build of a process has to import.
        import_seconds: Seconds that this takes.
    """

    fixed: float
    per_part: float = 0.0
    per_megabyte: float = 0.0
    packages: tuple[str, ...] = ()
    import_seconds: float = 0.0

    def seconds(self, size: ModelSize) -> float:
        """Return the seconds for a model, imports left out."""
        return self.fixed + self.per_part * size.parts + self.per_megabyte * size.megabytes


_ONNX = ("torch.onnx", "onnxscript", "onnxruntime")
_INDUCTOR = ("torch._dynamo", "torch._inductor.compile_fx")
USUAL_COSTS = {
    "TorchEager": UsualCost(0.05, 0.0, 0.0005),
    "ONNXRuntime": UsualCost(0.6, 0.02, 0.01, _ONNX, 2.0),
    "OpenVINO": UsualCost(0.7, 0.02, 0.01, ("openvino",), 1.0),
    "TorchInductorJit": UsualCost(3.0, 0.2, 0.02, _INDUCTOR, 2.5),
    "TorchInductorAot": UsualCost(10.0, 0.2, 0.05, _INDUCTOR, 2.5),
    "TorchAO": UsualCost(0.5, 0.01, 0.01, ("torchao.quantization",), 3.0),
}
OTHER_COST = UsualCost(20.0)
"""The same for a backend that is not in the table."""


@dataclass(frozen=True)
class ModelSize:
    """What the time of a build grows with.

    Args:
        parts: Layers: modules without modules inside.
        megabytes: Size of parameters and buffers.
    """

    parts: int
    megabytes: float

    @classmethod
    def of(cls, module: torch.nn.Module) -> ModelSize:
        """Look at a module."""
        parts = sum(1 for part in module.modules() if next(part.children(), None) is None)
        tensors = [*module.parameters(), *module.buffers()]
        return cls(parts, sum(tensor.numel() * tensor.element_size() for tensor in tensors) / 1e6)


class BuildCosts:
    """Predicts what candidates cost for one module.

    Args:
        size: Size of the module.
        history: What builds cost before.
    """

    def __init__(self, size: ModelSize, history: CostHistory) -> None:
        self._size = size
        self._history = history

    def build_seconds(self, backend: Backend, seen: Sequence[CandidateOutcome] = ()) -> float:
        """Predict how long a build takes.

        A backend that was built in this run with other options is expected to take what it took. Others are expected to
        take what the size of the model and earlier runs say, at the pace that this run's builds had against that.

        Args:
            backend: The candidate.
            seen: Outcomes of this run.
        """
        built = [outcome for outcome in seen if not outcome.is_baseline and outcome.build_seconds > _SHORTEST_BUILD]
        own = [outcome.build_seconds for outcome in built if outcome.backend == backend.name]
        if own:
            return max(own)
        paces = [outcome.build_seconds / self._expected(outcome.backend, outcome.description) for outcome in built]
        expected = self._expected(backend.name, backend.describe()) * (statistics.median(paces) if paces else 1.0)
        usual = _usual(backend.name)
        return expected + (usual.import_seconds if _missing(usual.packages) else 0.0)

    def rank(self, backend: Backend) -> float:
        """Return what candidates are sorted by: what they cost, all cheap ones alike, so that the list decides there.

        Args:
            backend: The candidate.
        """
        return max(self.build_seconds(backend), CHEAP_SECONDS)

    def trial_seconds(self, seen: Sequence[CandidateOutcome], reference_seconds: float) -> float:
        """Predict how long it takes to check and measure a candidate.

        Args:
            seen: Outcomes of this run, the baseline included.
            reference_seconds: What the answers of the original took that candidates are compared with.
        """
        ended = [outcome for outcome in seen if outcome.status == "ok" and not outcome.is_baseline]
        if ended:
            return statistics.median(outcome.check_seconds + outcome.measure_seconds for outcome in ended)
        original = sum(outcome.measure_seconds for outcome in seen if outcome.is_baseline)
        return max(USUAL_TRIAL_SECONDS, _CHECK_SHARE * reference_seconds + original + SCREEN_SECONDS)

    def why_no_time(
        self,
        backend: Backend,
        seen: Sequence[CandidateOutcome],
        seconds_left: float | None,
        reference_seconds: float = 0.0,
    ) -> str | None:
        """Say why a candidate is not begun; ``None`` when it is expected to end in time.

        Args:
            backend: The candidate.
            seen: Outcomes of this run.
            seconds_left: What is left of the time budget; ``None`` when there is none.
            reference_seconds: See :meth:`trial_seconds`.
        """
        if seconds_left is None:
            return None
        needed = self.build_seconds(backend, seen) + self.trial_seconds(seen, reference_seconds)
        if needed <= seconds_left:
            return None
        left = max(seconds_left, 0.0)
        return f"not begun: it would take about {needed:.0f} s, and {left:.0f} s of the time budget are left"

    def learn(self, outcome: CandidateOutcome) -> None:
        """Remember for later runs what a build took.

        Args:
            outcome: What was seen of a candidate.
        """
        if outcome.build_seconds > _SHORTEST_BUILD and outcome.stage in ("build", "check", "measure"):
            usual = _usual(outcome.backend).seconds(self._size)
            self._history.learn(outcome.build_seconds / usual, outcome.description, outcome.backend)

    def _expected(self, name: str, description: str) -> float:
        return _usual(name).seconds(self._size) * self._history.factor(description, name)


def load_packages(backend: Backend) -> None:
    """Import what a backend needs before its build is timed: the first build alone would seem dear, and all after it.

    Args:
        backend: The candidate; what is not installed is its own to report.
    """
    for name in _missing(_usual(backend.name).packages):
        with suppress(Exception):
            importlib.import_module(name)


def _usual(name: str) -> UsualCost:
    return USUAL_COSTS.get(name, OTHER_COST)


def _missing(packages: Sequence[str]) -> list[str]:
    return [name for name in packages if name not in sys.modules]
