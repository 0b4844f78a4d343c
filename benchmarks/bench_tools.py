"""What the benchmarks share: a neighbour that disturbs, turns that are fair, requirements, and results as JSON."""

from __future__ import annotations

import argparse
import json
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from aitune.torch.report.environment import gather_environment

RESULTS = Path(__file__).resolve().parent / "results"

_BURSTS = """
import random, sys, time
draw = random.Random(int(sys.argv[1]))
while True:
    end = time.monotonic() + draw.uniform(0.1, 1.5)
    while time.monotonic() < end:
        sum(range(1000))
    time.sleep(draw.uniform(0.1, 1.5))
"""


@contextmanager
def bursting_neighbour(seed: int = 0) -> Iterator[None]:
    """Let a second process burn one core about half of the time, in bursts of 0.1 to 1.5 s, while a block runs.

    Args:
        seed: Seed of the lengths.
    """
    process = subprocess.Popen([sys.executable, "-c", _BURSTS, str(seed)])
    try:
        yield
    finally:
        process.kill()
        process.wait()


@dataclass(frozen=True)
class Requirement:
    """One thing that a benchmark has to show.

    Args:
        what: What is looked at.
        value: What it came to, as text.
        wanted: What it should be, as text.
        met: Whether it is; ``None`` where too little was measured to say.
    """

    what: str
    value: str
    wanted: str
    met: bool | None

    def line(self) -> str:
        """Return one line for people."""
        word = {True: "met", False: "MISSED", None: "not enough trials"}[self.met]
        return f"{self.what}: {self.value} (wanted: {self.wanted}): {word}"


def print_requirements(requirements: Sequence[Requirement]) -> int:
    """Print what was to be shown.

    Returns:
        1 when something was missed, else 0: what a program should end with.
    """
    print()
    for requirement in requirements:
        print(requirement.line())
    return int(any(requirement.met is False for requirement in requirements))


def write_json(
    path: Path | None, settings: Mapping[str, Any], rows: Sequence[Any], requirements: Sequence[Requirement] = ()
) -> None:
    """Write a result with the machine that it came from.

    Args:
        path: The file; ``None`` writes nothing.
        settings: What the run was asked for.
        rows: The rows of its table, as plain data.
        requirements: What was to be shown.
    """
    if path is None:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    result = {
        "machine": gather_environment().describe(),
        "settings": dict(settings),
        "requirements": [asdict(requirement) for requirement in requirements],
        "rows": list(rows),
    }
    path.write_text(json.dumps(result, indent=2) + "\n")


def plain(options: argparse.Namespace) -> dict[str, Any]:
    """Return the options of a program as plain data, without the paths, which say nothing of the result."""
    return {name: value for name, value in vars(options).items() if not isinstance(value, Path)}


@dataclass(frozen=True)
class Turn:
    """How contestants take turns.

    Args:
        rounds: Blocks of each contestant.
        block_seconds: Length of a block; it holds one call at least.
        pause_seconds: Rest before a block, in which threads of the one before come to rest.
        seed: Seed of the orders.
    """

    rounds: int = 30
    block_seconds: float = 0.1
    pause_seconds: float = 0.02
    seed: int = 0


def take_turns(calls: Mapping[str, Callable[[], Any]], turn: Turn) -> dict[str, list[float]]:
    """Time callables in turn, one block each a round, in random order, with nothing of aitune but the calls.

    Args:
        calls: What is called, by name.
        turn: How long, and how often.

    Returns:
        Median seconds of a call in each round, by name.
    """
    order = random.Random(turn.seed)
    names = list(calls)
    times: dict[str, list[float]] = {name: [] for name in names}
    with torch.no_grad():
        for name in names:
            for _ in range(3):
                calls[name]()
        for _ in range(turn.rounds):
            order.shuffle(names)
            for name in names:
                time.sleep(turn.pause_seconds)
                calls[name]()  # the first call after a switch finds cold caches
                times[name].append(_block(calls[name], turn.block_seconds))
    return times


def _block(call: Callable[[], Any], seconds: float) -> float:
    clock = time.perf_counter
    times: list[float] = []
    end = clock() + seconds
    while not times or clock() < end:
        begin = clock()
        call()
        times.append(clock() - begin)
    return statistics.median(times)


def ratios(times: Mapping[str, Sequence[float]], base: str) -> dict[str, float]:
    """Return how many times as fast as one of them each contestant is: the median over the rounds.

    Args:
        times: What :func:`take_turns` gave.
        base: Name of the one that the others are compared with.
    """
    return {
        name: statistics.median(b / own for b, own in zip(times[base], mine, strict=True))
        for name, mine in times.items()
    }


def geometric_mean(values: Sequence[float]) -> float:
    """Return the geometric mean; NaN of nothing."""
    return statistics.geometric_mean(values) if values else float("nan")


def in_turn(tasks: Mapping[str, Callable[[], float]], rounds: int, seed: int) -> dict[str, list[float]]:
    """Run tasks in turn, in random order within each round; the first round does not count.

    Args:
        tasks: What returns a number of seconds, by name.
        rounds: Rounds that count.
        seed: Seed of the order.
    """
    order = random.Random(seed)
    seconds: dict[str, list[float]] = {name: [] for name in tasks}
    for number in range(rounds + 1):
        names = list(tasks)
        order.shuffle(names)
        for name in names:
            taken = tasks[name]()
            if number > 0:
                seconds[name].append(taken)
    return seconds
