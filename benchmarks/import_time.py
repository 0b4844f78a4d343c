"""How much does ``import aitune.torch`` add to ``import torch``?

Two kinds of fresh process take turns, in random order within each round, so that a machine that slows down slows both:
one imports torch, the other torch and then aitune.torch. The first round warms the file cache and is not counted. What
is added is given twice: as the difference within a round, which other processes disturb, and as the time of the second
import in its own process, which they hardly do. The public names are loaded when they are first asked for, so the cost
of asking for all of them is shown as well.
"""

from __future__ import annotations

import argparse
import random
import statistics
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from bench_tools import plain, write_json

TORCH_ONLY = """
import time
start = time.perf_counter()
import torch
print(time.perf_counter() - start)
"""

TORCH_THEN_AITUNE = """
import time
start = time.perf_counter()
import torch
with_torch = time.perf_counter()
import aitune.torch
with_package = time.perf_counter()
for name in getattr(aitune.torch, "__all__", ()):
    getattr(aitune.torch, name)
with_names = time.perf_counter()
print(with_package - start, with_package - with_torch, with_names - with_package)
"""


def time_process(program: str) -> list[float]:
    """Run a program in a fresh process.

    Args:
        program: Python that prints numbers on one line.

    Returns:
        The numbers, in seconds.
    """
    answer = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    return [float(word) for word in answer.stdout.split()]


def measure(rounds: int, seed: int) -> tuple[list[float], list[list[float]]]:
    """Time both kinds of process in turn.

    Args:
        rounds: Rounds that count, at least 1.
        seed: Seed of the order within the rounds.

    Returns:
        Seconds of ``import torch`` in each round; and of the other process in each round: ``import aitune.torch``, the
        part of it that came after torch, and the first use of the public names.
    """
    order = random.Random(seed)
    baseline: list[float] = []
    package: list[list[float]] = []
    for number in range(rounds + 1):
        programs = [TORCH_ONLY, TORCH_THEN_AITUNE]
        order.shuffle(programs)
        seconds = {program: time_process(program) for program in programs}
        if number > 0:
            baseline.append(seconds[TORCH_ONLY][0])
            package.append(seconds[TORCH_THEN_AITUNE])
    return baseline, package


def summarise(label: str, seconds: Sequence[float]) -> str:
    """Return the median and the range of some times as one line.

    Args:
        label: What was timed.
        seconds: The times.
    """
    low, high = min(seconds) * 1000, max(seconds) * 1000
    return f"{label:46} {statistics.median(seconds) * 1000:8.1f} ms   ({low:.1f} to {high:.1f})"


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9, help="rounds that count (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the order (default: %(default)s)")
    parser.add_argument("--json", type=Path, help="file for the times")
    arguments = parser.parse_args()
    if arguments.rounds < 1:
        parser.error(f"--rounds must be at least 1, got {arguments.rounds}")

    baseline, package = measure(arguments.rounds, arguments.seed)
    total, after_torch, names = zip(*package, strict=True)
    added = [with_package - alone for with_package, alone in zip(total, baseline, strict=True)]
    print(f"median of {arguments.rounds} fresh processes of each kind (smallest to largest)")
    rows: dict[str, Sequence[float]] = {
        "import torch": baseline,
        "import aitune.torch": total,
        "  added, by rounds": added,
        "  added, after torch in the same process": after_torch,
        "  first use of all public names": names,
    }
    for label, seconds in rows.items():
        print(summarise(label, seconds))
    stored = [{"what": label.strip(), "seconds": list(seconds)} for label, seconds in rows.items()]
    write_json(arguments.json, plain(arguments), stored)


if __name__ == "__main__":
    main()
