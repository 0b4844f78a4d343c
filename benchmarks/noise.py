"""How often does a comparison name a false winner, and how often does it find a true one, on this machine?

    python benchmarks/noise.py --json benchmarks/results/noise.json        # everything: an hour or two
    python benchmarks/noise.py --truths 5% --trials 60 --conditions quiet  # a part

Three truths, each for calls of about 50 µs, 1 ms and 20 ms, one length after the other: a module against itself; a
function that does a piece of work 20 times against one that does it 21 times, so that it is 5% faster by construction;
and one whose pieces are 0.5% larger. Each in a quiet machine and beside a second process that burns a core in bursts.
It prints shares and ratios only; times would say more of the machine than of the method.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch
from bench_tools import Requirement, bursting_neighbour, plain, print_requirements, write_json

from aitune.torch.module.sample import Sample
from aitune.torch.task.outcome import PairedComparison, Verdict
from aitune.torch.task.playoff import Contestant, PlayoffConfig, compare, screen

VERDICTS: tuple[Verdict, ...] = ("faster", "slower", "tie", "undecided")
LENGTHS = {"50us": 50e-6, "1ms": 1e-3, "20ms": 20e-3}
LAYERS = {"50us": (32, 1, 10), "1ms": (192, 16, 20), "20ms": (768, 48, 20)}
"""Features, batch size and number of layers that take about that long on one core of a server."""

TRUTHS = {"same": 1.0, "5%": 1.05, "0.5%": 1.005}
CONDITIONS = ("quiet", "bursts")
WANTED_TRIALS = {"same": 150, "5%": 60, "0.5%": 60}
"""That a share is at most 2% takes 149 trials with none, that it is at least 95% takes 59 of 59."""

_PIECES = 20
_STEP = 6400
"""Work comes in steps of so many elements, so that 1.005 of it is a whole number of vectors of the processor."""


@dataclass(frozen=True)
class Row:
    """One row of the table.

    Args:
        condition: ``"quiet"`` or ``"bursts"``.
        truth: How much faster the candidate is.
        length: Length of the calls.
        trials: Comparisons.
        verdicts: How often each verdict was given.
        median_speedup: Median of the estimated ratios.
        median_half_width: Median of half the widths of the intervals.
        clean_share: Share of the pairs of blocks that were undisturbed.
        median_seconds: Median time of a comparison.
        longest_seconds: Longest time of a comparison.
    """

    condition: str
    truth: str
    length: str
    trials: int
    verdicts: dict[Verdict, int]
    median_speedup: float
    median_half_width: float
    clean_share: float
    median_seconds: float
    longest_seconds: float


class Work:
    """Does the same piece of work again and again; its time is the number of pieces times that of one.

    Args:
        memory: Two rows, at least as long as a piece; those that are compared share it, because the same work takes
            up to 1% longer elsewhere in memory.
        elements: Size of a piece.
        repeats: Pieces in a call.
    """

    def __init__(self, memory: torch.Tensor, elements: int, repeats: int) -> None:
        self._source, self._target = memory[0, :elements], memory[1, :elements]
        self._repeats = repeats

    def __call__(self) -> None:
        """Do all pieces."""
        source, target, sin = self._source, self._target, torch.sin
        for _ in range(self._repeats):
            sin(source, out=target)


def contestants(truth: str, length: str) -> tuple[Callable[..., object], Callable[..., object], Sample]:
    """Make a candidate and an opponent whose ratio is known, and the arguments of a call."""
    if truth == "same":
        features, batch, layers = LAYERS[length]
        module = torch.nn.Sequential(*[torch.nn.Linear(features, features)] * layers).eval()
        # The very same object: a copy lies elsewhere in memory, and is then truly up to 1% faster or slower.
        return module, module, Sample((torch.randn(batch, features),), {})
    seconds_of_step = _seconds_of(Work(_memory(_STEP), _STEP, 1))
    steps = LENGTHS[length] / seconds_of_step
    if truth == "5%":
        elements = max(round(_STEP * steps / _PIECES), 1)
        memory = _memory(elements)
        return Work(memory, elements, _PIECES), Work(memory, elements, _PIECES + 1), Sample((), {})
    pieces = min(max(round(steps), 1), _PIECES)
    elements = _STEP * max(round(steps / pieces), 1)
    larger = round(TRUTHS[truth] * elements)
    memory = _memory(larger)
    return Work(memory, elements, pieces), Work(memory, larger, pieces), Sample((), {})


def _memory(elements: int) -> torch.Tensor:
    return torch.linspace(0.0, 1.0, 2 * elements).reshape(2, elements)


def _seconds_of(work: Work) -> float:
    times = []
    for _ in range(200):
        begin = time.perf_counter()
        work()
        times.append(time.perf_counter() - begin)
    return statistics.median(times)


def trials(truth: str, config: PlayoffConfig, options: argparse.Namespace) -> Iterator[tuple[str, PairedComparison]]:
    """Run comparisons of one truth, each with a seed of its own, the lengths in turn."""
    run = compare if options.method == "compare" else screen
    made = {length: contestants(truth, length) for length in options.lengths}
    for number in range(options.trials or WANTED_TRIALS[truth]):
        length = options.lengths[number % len(options.lengths)]
        candidate, opponent, sample = made[length]
        yield (
            length,
            run(
                Contestant("candidate", candidate, sample),
                Contestant("opponent", opponent, sample),
                replace(config, seed=config.seed + number),
            ),
        )


def summarise(condition: str, truth: str, length: str, results: Sequence[PairedComparison]) -> Row:
    """Count verdicts and take medians."""
    verdicts = Counter(result.verdict for result in results)
    return Row(
        condition,
        truth,
        length,
        len(results),
        {verdict: verdicts[verdict] for verdict in VERDICTS},
        statistics.median(result.speedup for result in results),
        statistics.median((result.high - result.low) / 2 for result in results),
        sum(result.clean_pairs for result in results) / max(sum(result.pairs for result in results), 1),
        statistics.median(result.seconds for result in results),
        max(result.seconds for result in results),
    )


def line(row: Row) -> str:
    """Return one line of the table."""
    counts = "".join(f"{row.verdicts[verdict]:>6}/{row.trials:<4}" for verdict in VERDICTS)
    return (
        f"{row.condition:8}{row.truth:6}{row.length:6}{counts}{row.median_speedup:>8.4f} {row.median_half_width:.4f}"
        f"{row.clean_share:>7.0%}{row.median_seconds:>7.1f}{row.longest_seconds:>7.1f}"
    )


def requirements(rows: Sequence[Row], seconds: float) -> list[Requirement]:
    """Say what was to be shown, and whether it was."""
    shown = []
    for row in rows:
        if row.length != "all":
            continue
        faster = row.verdicts["faster"]
        enough = row.trials >= WANTED_TRIALS[row.truth]
        if row.truth == "same":
            met = faster <= 0.02 * row.trials if enough else None
            shown.append(_shown("same against same called faster", row, faster, "at most 2%", met))
            shown.append(_shown("same against same undecided", row, row.verdicts["undecided"], "known", True))
        elif row.condition == "quiet" and row.truth == "5%":
            met = faster >= 0.95 * row.trials if enough else None
            shown.append(_shown(f"truly 5% faster, found in {seconds:.0f} s", row, faster, "at least 95%", met))
        elif row.condition == "quiet":
            shown.append(_shown("0.5% faster called faster", row, faster, "never", faster == 0 if enough else None))
    return shown


def _shown(what: str, row: Row, count: int, wanted: str, met: bool | None) -> Requirement:
    return Requirement(f"{row.condition}, {what}", f"{count} of {row.trials} ({count / row.trials:.1%})", wanted, met)


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, help="comparisons for each truth and condition; else what it takes")
    parser.add_argument("--seconds", type=float, default=20.0, help="budget of one comparison")
    parser.add_argument("--threads", type=int, default=1, help="threads of torch")
    parser.add_argument("--truths", nargs="+", choices=TRUTHS, default=list(TRUTHS))
    parser.add_argument("--lengths", nargs="+", choices=LENGTHS, default=list(LENGTHS))
    parser.add_argument("--conditions", nargs="+", choices=CONDITIONS, default=list(CONDITIONS))
    parser.add_argument("--method", choices=("compare", "screen"), default="compare")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, help="file for the same figures as JSON")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str]) -> int:
    """Run every combination and print its rows as they come.

    Returns:
        1 when something that was to be shown was missed, else 0.
    """
    options = parse(arguments)
    torch.set_num_threads(options.threads)
    torch.manual_seed(options.seed)
    config = PlayoffConfig(num_threads=options.threads, pair_budget_seconds=options.seconds, seed=options.seed)
    head = "".join(f"{verdict:>11}" for verdict in VERDICTS)
    print(f"{'':8}{'truth':6}{'calls':6}{head}   ratio   ±    clean      s    max")
    rows: list[Row] = []
    for condition in options.conditions:
        for truth in options.truths:
            with bursting_neighbour(options.seed) if condition == "bursts" else nullcontext():
                results = list(trials(truth, config, options))
            by_length = {name: [r for length, r in results if length == name] for name in options.lengths}
            by_length["all"] = [result for _, result in results]
            for length, some in by_length.items():
                if some:
                    rows.append(summarise(condition, truth, length, some))
                    print(line(rows[-1]), flush=True)
            write_json(options.json, plain(options), [asdict(row) for row in rows], requirements(rows, options.seconds))
    return print_requirements(requirements(rows, options.seconds))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
