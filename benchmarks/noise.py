"""How often does a comparison name a false winner, and how often does it find a true one, on this machine?

``python benchmarks/noise.py --trials 20 --seconds 20`` compares eager modules of known ratio: a module with itself
(1.00), with one of 21 layers instead of 20 (close to 1.05), and one of 200 layers with one of 201 (close to 1.005), for
short, middle and long calls. It prints shares and ratios only; times would say more of the machine than of the method.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch

from aitune.torch.module.sample import Sample
from aitune.torch.task.outcome import PairedComparison, Verdict
from aitune.torch.task.playoff import Contestant, PlayoffConfig, compare, screen

VERDICTS: tuple[Verdict, ...] = ("faster", "slower", "tie", "undecided")
LENGTHS = {"short": (32, 1), "middle": (192, 16), "long": (768, 48)}
"""Features and batch size of the layers; 20 of them take some 100 µs, 1 ms and 20 ms on one core of a server."""

TRUTHS = {"same": (20, 20), "5%": (20, 21), "0.5%": (200, 201)}
"""Layers of the candidate and of the opponent."""


@dataclass(frozen=True)
class Condition:
    """One row of the table.

    Args:
        truth: What the two have in common.
        length: Length of the calls.
        method: ``"compare"`` or ``"screen"``.
        verdicts: How often each verdict was given.
        median_speedup: Median of the estimated ratios.
        median_half_width: Median of half the widths of the intervals.
        clean_share: Share of the pairs of blocks that were undisturbed.
    """

    truth: str
    length: str
    method: str
    verdicts: dict[Verdict, int]
    median_speedup: float
    median_half_width: float
    clean_share: float


def layers(count: int, length: str) -> torch.nn.Module:
    """Make a module whose time grows with the number of its layers."""
    features, _ = LENGTHS[length]
    shared = torch.nn.Linear(features, features)
    return torch.nn.Sequential(*[shared] * count).eval()


def trials(truth: str, length: str, method: str, config: PlayoffConfig, count: int) -> Iterator[PairedComparison]:
    """Run comparisons of one kind, each with a seed of its own."""
    features, batch = LENGTHS[length]
    sample = Sample((torch.randn(batch, features),), {})
    mine, other = TRUTHS[truth]
    candidate = layers(mine, length)
    # A second module of the same kind lies elsewhere in memory, and is then truly up to 1% faster or slower.
    opponent = candidate if mine == other else layers(other, length)
    run = compare if method == "compare" else screen
    for seed in range(count):
        yield run(
            Contestant("candidate", candidate, sample),
            Contestant("opponent", opponent, sample),
            replace(config, seed=config.seed + seed),
        )


def summarise(truth: str, length: str, method: str, results: list[PairedComparison]) -> Condition:
    """Count verdicts and take medians."""
    verdicts = Counter(result.verdict for result in results)
    return Condition(
        truth,
        length,
        method,
        {verdict: verdicts[verdict] for verdict in VERDICTS},
        statistics.median(result.speedup for result in results),
        statistics.median((result.high - result.low) / 2 for result in results),
        sum(result.clean_pairs for result in results) / max(sum(result.pairs for result in results), 1),
    )


def parse(arguments: list[str]) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=20, help="comparisons for each row")
    parser.add_argument("--seconds", type=float, default=20.0, help="budget of one comparison")
    parser.add_argument("--threads", type=int, default=1, help="threads of torch")
    parser.add_argument("--truths", nargs="+", choices=TRUTHS, default=list(TRUTHS))
    parser.add_argument("--lengths", nargs="+", choices=LENGTHS, default=list(LENGTHS))
    parser.add_argument("--methods", nargs="+", choices=("compare", "screen"), default=["compare"])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, help="file for the same figures as JSON")
    return parser.parse_args(arguments)


def main(arguments: list[str]) -> None:
    """Run every combination and print one row each, as it comes."""
    options = parse(arguments)
    torch.set_num_threads(options.threads)
    torch.manual_seed(options.seed)
    config = PlayoffConfig(num_threads=options.threads, pair_budget_seconds=options.seconds, seed=options.seed)
    print(f"{'truth':6}{'calls':8}{'method':9}" + "".join(f"{v:>10}" for v in VERDICTS) + "   ratio   ±     clean")
    rows = []
    for method in options.methods:
        for truth in options.truths:
            for length in options.lengths:
                results = list(trials(truth, length, method, config, options.trials))
                row = summarise(truth, length, method, results)
                rows.append(row)
                counts = "".join(f"{row.verdicts[verdict]:>7}/{options.trials:<2}" for verdict in VERDICTS)
                figures = f"{row.median_speedup:>8.3f} {row.median_half_width:.3f} {row.clean_share:>6.0%}"
                print(f"{truth:6}{length:8}{method:9}{counts}{figures}", flush=True)
    if options.json is not None:
        settings = {"trials": options.trials, "seconds": options.seconds, "threads": options.threads}
        options.json.write_text(json.dumps({"settings": settings, "rows": [asdict(row) for row in rows]}, indent=2))


if __name__ == "__main__":
    main(sys.argv[1:])
