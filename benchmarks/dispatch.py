"""What a tuned module adds to a call, over the same call of the untuned module.

Module and backend do next to nothing, so the difference is the dispatch. Calls of the two alternate, each timed on its
own; the figures are medians and 99th percentiles of all calls.

    python benchmarks/dispatch.py [--calls 20000] [--json results.json] [--check]
"""

from __future__ import annotations

import argparse
import gc
import logging
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from bench_tools import Requirement, plain, print_requirements, write_json

from aitune.torch.config import config
from aitune.torch.module.call_statistics import CallStatistics
from aitune.torch.module.recording_module import recorded_batch_size
from aitune.torch.module.registry import fresh_module_registry
from aitune.torch.module.sample import Sample
from aitune.torch.module.wrapper_module import Module

WARM_UP = 2000
SIXTEEN = "the last of 16 graphs"
GROWTH_BUDGET = 1.0


class One(torch.nn.Module):
    """Takes one tensor."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the input."""
        return x


class Four(torch.nn.Module):
    """Takes four tensors by name, and returns a dict."""

    def forward(
        self,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        token_type_ids: torch.Tensor | None = None,
        position_ids: torch.Tensor | None = None,
    ) -> dict[str, Any]:
        """Return two of the inputs."""
        return {"first": input_ids, "second": attention_mask}


class Many(torch.nn.Module):
    """Takes a dict."""

    def forward(self, batch: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Return the dict."""
        return batch


class Flagged(torch.nn.Module):
    """Has a graph for each value of a flag."""

    def forward(self, x: torch.Tensor, flag: int = 0) -> torch.Tensor:
        """Return the input."""
        return x


class Weighted(torch.nn.Module):
    """Has weights, which the tuned module watches."""

    def __init__(self, layers: int) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(*(torch.nn.Linear(4, 4) for _ in range(layers)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the input."""
        return x


class TrivialBackend:
    """Answers at once with what it was given."""

    runs_original = False
    follows_weights = False
    equal_symbols: Sequence[Sequence[str]] = ()
    is_active = True

    def __init__(self, answer: Any) -> None:
        self._answer = answer

    def run_tensors(self, tensors: list[torch.Tensor]) -> Any:
        """Return the answer."""
        return self._answer

    def infer(self, *args: Any, **kwargs: Any) -> Any:
        """Return the answer."""
        return self._answer

    def activate(self) -> None:
        """Nothing to load."""

    def deactivate(self) -> None:
        """Nothing to free."""

    def deploy(self, device: torch.device | str | None = None) -> None:
        """Nothing to free."""

    def to_dict(self) -> dict[str, Any]:
        """Return nothing."""
        return {}

    def describe(self) -> str:
        """Return the name."""
        return "Trivial"


class TrivialTuner:
    """Chooses the trivial backend for every graph."""

    def __init__(self, answer: Any) -> None:
        self._answer = answer

    def tune(self, *_: Any) -> TrivialBackend:
        """Return the backend."""
        return TrivialBackend(self._answer)

    def tune_dry_run(self, *_: Any) -> None:
        """Nothing to say."""


@dataclass(frozen=True)
class Case:
    """One kind of call.

    Args:
        name: What is called.
        make: Makes the module.
        calls: Makes the calls that are recorded, from a batch size.
        measured: The call that is timed.
        budget: Microseconds allowed, if any.
        served: Whether the backend answers the measured call.
    """

    name: str
    make: Callable[[], torch.nn.Module]
    calls: Callable[[int], list[Sample]]
    measured: Sample
    budget: float | None = None
    served: bool = True


@dataclass(frozen=True)
class Figures:
    """What was measured; times in microseconds.

    Args:
        name: Name of the case.
        untuned: Median of the untuned module.
        tuned: Median of the tuned module.
        overhead: Difference of the medians.
        untuned_p99: 99th percentile of the untuned module.
        tuned_p99: 99th percentile of the tuned module.
        drift: How much dearer the last quarter of the tuned calls was than the first, over the same of the untuned.
        budget: What is allowed for the overhead, if anything.
    """

    name: str
    untuned: float
    tuned: float
    overhead: float
    untuned_p99: float
    tuned_p99: float
    drift: float
    budget: float | None

    def requirement(self) -> Requirement | None:
        """Return that the overhead is allowed, where something limits it."""
        return None if self.budget is None else _at_most(self.name, self.overhead, self.budget)


def _at_most(what: str, value: float, allowed: float) -> Requirement:
    return Requirement(what, f"{value:.2f} us", f"at most {allowed:.1f} us", value <= allowed)


def _x(batch: int) -> torch.Tensor:
    return torch.zeros(batch, 4)


def _four(batch: int) -> Sample:
    names = ("input_ids", "attention_mask", "token_type_ids", "position_ids")
    return Sample((), {name: torch.zeros(batch, 8, dtype=torch.int64) for name in names})


def _ten(batch: int) -> Sample:
    return Sample(({f"feature{number}": _x(batch) for number in range(10)},), {})


def _one(batch: int) -> list[Sample]:
    return [Sample((_x(batch),), {})]


def cases() -> list[Case]:
    """Return every case, the plain one first."""
    one = Sample((_x(2),), {})
    return [
        Case("one tensor", One, _one, one, 2.0),
        Case("four keyword tensors, dict output", Four, lambda b: [_four(b)], _four(2), 4.0),
        Case("dict of ten tensors", Many, lambda b: [_ten(b)], _ten(2), 6.0),
        Case("falling back: outside the range", One, _one, Sample((_x(9),), {}), 5.0, served=False),
        Case(
            SIXTEEN,
            Flagged,
            lambda b: [Sample((_x(b), flag), {}) for flag in range(16)],
            Sample((_x(2), 15), {}),
        ),
        Case("one tensor, 2 weights", lambda: Weighted(1), _one, one),
        Case("one tensor, 100 weights", lambda: Weighted(50), _one, one),
    ]


def measure(case: Case, num_calls: int) -> tuple[Figures, CallStatistics]:
    """Time one case.

    Args:
        case: The case.
        num_calls: Timed calls of each side.
    """
    untuned = case.make().eval()
    wrapped = Module(case.make().eval())
    wrapped.enable_recording()
    for batch in (1, 4):
        for args, kwargs in case.calls(batch):
            with recorded_batch_size(batch):
                wrapped(*args, **kwargs)
    args, kwargs = case.measured
    wrapped.tune(strategy=TrivialTuner(untuned(*args, **kwargs)))
    with torch.no_grad():
        _alternate(untuned, wrapped, case.measured, WARM_UP)
        before, after = _alternate(untuned, wrapped, case.measured, num_calls)
    median_before, median_after = statistics.median(before) / 1e3, statistics.median(after) / 1e3
    figures = Figures(
        name=case.name,
        untuned=median_before,
        tuned=median_after,
        overhead=median_after - median_before,
        untuned_p99=_percentile(before, 0.99),
        tuned_p99=_percentile(after, 0.99),
        drift=_drift(after) / _drift(before),
        budget=case.budget,
    )
    return figures, wrapped.stats()


def _alternate(
    untuned: Callable[..., Any], tuned: Callable[..., Any], call: Sample, num_calls: int
) -> tuple[list[int], list[int]]:
    args, kwargs = call
    before, after = [0] * num_calls, [0] * num_calls
    clock = time.perf_counter_ns
    gc.disable()
    try:
        for number in range(num_calls):
            began = clock()
            untuned(*args, **kwargs)
            between = clock()
            tuned(*args, **kwargs)
            ended = clock()
            before[number], after[number] = between - began, ended - between
    finally:
        gc.enable()
    return before, after


def _percentile(nanoseconds: list[int], share: float) -> float:
    return sorted(nanoseconds)[int(share * (len(nanoseconds) - 1))] / 1e3


def _drift(nanoseconds: list[int]) -> float:
    quarter = len(nanoseconds) // 4
    return statistics.median(nanoseconds[-quarter:]) / statistics.median(nanoseconds[:quarter])


def _row(name: str, *columns: Any) -> str:
    return f"{name:<36}" + "".join(f"{column:>12}" for column in columns)


def main() -> int:
    """Measure every case, print a table, and judge.

    Returns:
        1 with ``--check`` when a budget is exceeded, else 0.
    """
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", type=int, default=20_000, help="timed calls of each side of each case")
    parser.add_argument("--json", type=Path, help="file for the figures")
    parser.add_argument("--check", action="store_true", help="exit with 1 when a budget is exceeded")
    options = parser.parse_args()
    torch.set_num_threads(1)
    logging.getLogger("aitune").setLevel(logging.ERROR)
    results = []
    print(_row("microseconds", "untuned", "tuned", "overhead", "budget", "p99 before", "p99 after", "drift"))
    with tempfile.TemporaryDirectory() as folder, config.override(cache_dir=Path(folder)), fresh_module_registry():
        for case in cases():
            figures, counted = measure(case, options.calls)
            expected = 1.0 if case.served else 0.0
            if counted.share_served != expected:
                raise SystemExit(f"{case.name}: {counted}, expected a share of {expected} served")
            results.append(figures)
            times = (figures.untuned, figures.tuned, figures.overhead)
            allowed = "" if figures.budget is None else f"{figures.budget:.1f}"
            tails = (f"{figures.untuned_p99:.2f}", f"{figures.tuned_p99:.2f}", f"{figures.drift:.2f}")
            print(_row(figures.name, *(f"{value:.2f}" for value in times), allowed, *tails))
    growth = next(f.overhead for f in results if f.name == SIXTEEN) - results[0].overhead
    shown = [requirement for figures in results if (requirement := figures.requirement()) is not None]
    shown.append(_at_most("growth from 1 to 16 graphs", growth, GROWTH_BUDGET))
    write_json(options.json, plain(options), [asdict(figures) for figures in results], shown)
    missed = print_requirements(shown)
    return missed if options.check else 0


if __name__ == "__main__":
    sys.exit(main())
