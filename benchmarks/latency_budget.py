"""Is the batch size that LatencyBudgetStrategy chooses within the budget when an independent loop measures it again?

``python benchmarks/latency_budget.py --runs 10 --backend ONNXRuntime`` takes a ResNet-18 at 112 x 112; its weights are
random, which does not matter here. Each run draws a budget between the latencies of the smallest and the largest batch
size, tunes, and then times calls of the tuned module at the chosen batch size in a plain loop. Both judge the same
percentile of the latency (``--percentile``, the median by default): the strategy by the upper end of its interval, the
loop by its value. It ends with 1 when fewer than ``--required`` runs were within the budget.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from bench_tools import Requirement, plain, print_requirements, write_json

import aitune.torch as ait
from aitune.torch.backend.registry import registry
from aitune.torch.task.machine import LOCAL_MACHINE

BATCH_SIZES = (1, 2, 4, 8)
CALLS = 30
SECONDS = 3.0


@dataclass(frozen=True)
class Run:
    """One tuning and its check.

    Args:
        budget_ms: The budget.
        winner: What was chosen.
        batch_size: Batch size that was chosen with it.
        measured_ms: Latency that the strategy measured for the winner there.
        upper_ms: Upper end of its interval, which the strategy held to the budget.
        again_ms: Latency of the independent loop.
        stalled_share: Share of that loop's time in which some task waited for a core: other processes were in the way.
        seconds: Time to tune.
    """

    budget_ms: float
    winner: str
    batch_size: int
    measured_ms: float
    upper_ms: float
    again_ms: float
    stalled_share: float | None
    seconds: float

    @property
    def is_within(self) -> bool:
        """Whether the independent loop stayed within the budget."""
        return self.again_ms <= self.budget_ms

    def describe(self) -> str:
        """Return one line for people."""
        stalled = "unknown" if self.stalled_share is None else f"{self.stalled_share:.0%}"
        verdict = "within" if self.is_within else "ABOVE"
        return (
            f"budget {self.budget_ms:.1f} ms -> {self.winner} at batch size {self.batch_size}, "
            f"{self.measured_ms:.1f} ms (up to {self.upper_ms:.1f}); again {self.again_ms:.1f} ms, {verdict} "
            f"(tuned in {self.seconds:.0f} s; stalled meanwhile: {stalled})"
        )


def resnet18() -> torch.nn.Module:
    """Make a ResNet-18 for images, without its classifier."""
    from transformers import ResNetConfig, ResNetModel

    torch.manual_seed(0)
    config = ResNetConfig(
        embedding_size=64, hidden_sizes=[64, 128, 256, 512], depths=[2, 2, 2, 2], layer_type="basic", return_dict=False
    )
    model: torch.nn.Module = ResNetModel(config).eval()
    return model


def latency_ms(model: Any, batch_size: int, percentile: int) -> float:
    """Time calls one after the other, with nothing of aitune but the call.

    Args:
        model: What is called.
        batch_size: Images in a call.
        percentile: Which latency is returned.
    """
    images = torch.randn(batch_size, 3, 112, 112)
    times: list[float] = []
    with torch.no_grad():
        for _ in range(5):
            model(images)
        end = time.perf_counter() + SECONDS
        while len(times) < CALLS or time.perf_counter() < end:
            begin = time.perf_counter()
            model(images)
            times.append(1000.0 * (time.perf_counter() - begin))
    return statistics.quantiles(times, n=100, method="inclusive")[percentile - 1]


def tune_once(net: torch.nn.Module, budget_ms: float, backends: list[str], percentile: int) -> Run:
    """Tune for a budget and check the choice.

    Args:
        net: The module.
        budget_ms: The budget.
        backends: Names of the candidates.
        percentile: Which latency has to be within the budget.
    """
    candidates = [registry.load(name)() for name in backends]
    strategy = ait.LatencyBudgetStrategy(budget_ms, candidates, percentile=percentile)  # type: ignore[arg-type]
    model = ait.Module(net, "resnet18")
    began = time.perf_counter()
    images = [torch.randn(3, 112, 112) for _ in range(max(BATCH_SIZES))]
    report = ait.tune(
        model, images, batch_sizes=BATCH_SIZES, max_num_batches_per_batch_size=1, strategy=strategy,
        ignore_failing_modules=False, retune=True,
    )  # fmt: skip
    seconds = time.perf_counter() - began
    winner = report.winner("resnet18")
    assert winner is not None
    batch_size = int(strategy.strategy_results[winner.key]["selected_batch_size"])
    found = next(m for m in winner.measurements if m.batch_size == batch_size)
    measured = {50: found.median_ms, 90: found.p90_ms, 99: found.p99_ms}[percentile]
    upper = {50: found.high_ms, 90: found.p90_high_ms, 99: found.p99_high_ms}[percentile]
    assert upper is not None
    began, stalled = LOCAL_MACHINE.now(), LOCAL_MACHINE.stalled_seconds()
    again = latency_ms(model, batch_size, percentile)
    after, length = LOCAL_MACHINE.stalled_seconds(), LOCAL_MACHINE.now() - began
    share = None if stalled is None or after is None else (after - stalled) / length
    return Run(budget_ms, winner.description, batch_size, measured, upper, again, share, seconds)


def main() -> int:
    """Run the benchmark, print one line a run, and judge.

    Returns:
        1 when too few runs were within the budget, else 0.
    """
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--required", type=int, default=9, help="runs that must be within the budget")
    parser.add_argument("--backend", action="append", default=None, help="candidate; may be given more than once")
    parser.add_argument("--percentile", type=int, choices=(50, 90, 99), default=50)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, default=None)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    net = resnet18()
    lowest, highest = (latency_ms(net, size, options.percentile) for size in (BATCH_SIZES[0], BATCH_SIZES[-1]))
    print(f"eager: {lowest:.1f} ms at batch size {BATCH_SIZES[0]}, {highest:.1f} ms at {BATCH_SIZES[-1]}")
    draw = random.Random(options.seed)
    runs = []
    with tempfile.TemporaryDirectory() as folder, ait.config.override(cache_dir=Path(folder)):
        for number in range(options.runs):
            budget_ms = draw.uniform(1.2 * lowest, highest)
            runs.append(tune_once(net, budget_ms, options.backend or ["ONNXRuntime"], options.percentile))
            print(f"run {number}: {runs[-1].describe()}", flush=True)
    within = sum(run.is_within for run in runs)
    value, wanted = f"{within} of {len(runs)}", f"at least {options.required}"
    shown = [Requirement("runs within the budget when measured again", value, wanted, within >= options.required)]
    write_json(options.json, plain(options), [asdict(run) for run in runs], shown)
    return print_requirements(shown)


if __name__ == "__main__":
    sys.exit(main())
