"""Run every benchmark one after the other: ``make bench``, or ``make bench BENCH=--quick`` to see whether they work.

Each is a program of its own, with its own options, and can be run alone. What they print comes through as it comes;
what they store lies in ``benchmarks/results``, and at the end a table says how each ended and ``results/bench.json``
holds everything. Nothing else may run on the machine meanwhile.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench_tools import RESULTS

from aitune.torch.report.environment import gather_environment

HERE = Path(__file__).resolve().parent


@dataclass(frozen=True)
class Program:
    """One benchmark; ``--json`` names the file that it stores its result in.

    Args:
        name: Its file without the ending.
        options: Options of a whole run.
        quick: Options of a run that only shows that it works.
    """

    name: str
    options: tuple[str, ...] = ()
    quick: tuple[str, ...] = ()


PROGRAMS = (
    Program("import_time", quick=("--rounds", "1")),
    Program("dispatch", ("--check",), ("--calls", "2000")),
    Program("artifact_load", quick=("--rounds", "1")),
    Program("cold_start", quick=("--only", "resnet18", "--backends", "ONNXRuntime", "--rounds", "1")),
    Program("checking_time", quick=("--only", "perceptron", "--backends", "ONNXRuntime")),
    Program("latency_budget", quick=("--runs", "1", "--required", "0")),
    Program("noise", quick=("--trials", "3")),
    Program(
        "zoo",
        quick=("--only", "mlp", "--modes", "exact", "oracle", "--rounds", "3", "--out", str(RESULTS / "quick" / "zoo")),
    ),
)


def run(program: Program, is_quick: bool, folder: Path) -> dict[str, Any]:
    """Run one benchmark, and return how it ended with what it stored.

    Args:
        program: The benchmark.
        is_quick: Whether to show only that it works.
        folder: Where it stores its result.
    """
    path = folder / f"{program.name}.json"
    path.unlink(missing_ok=True)  # what an earlier run stored is no result of this one
    options = program.quick if is_quick else program.options
    print(f"\n== {program.name}", flush=True)
    begin = time.monotonic()
    ended = subprocess.run(
        [sys.executable, str(HERE / f"{program.name}.py"), *options, "--json", str(path)], check=False
    )
    result = json.loads(path.read_text()) if path.exists() else None
    return {"status": ended.returncode, "minutes": (time.monotonic() - begin) / 60.0, "result": result}


def main(arguments: Sequence[str]) -> int:
    """Run what was asked for.

    Returns:
        1 when one missed what it was to show, or could not be run, else 0.
    """
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = [program.name for program in PROGRAMS]
    parser.add_argument("--only", nargs="+", choices=names, default=names)
    parser.add_argument("--quick", action="store_true", help="only show that they work")
    options = parser.parse_args(arguments)
    folder = RESULTS / "quick" if options.quick else RESULTS
    folder.mkdir(parents=True, exist_ok=True)
    chosen = [program for program in PROGRAMS if program.name in options.only]
    found = {program.name: run(program, options.quick, folder) for program in chosen}
    everything = {"machine": gather_environment().describe(), "benchmarks": found}
    (folder / "bench.json").write_text(json.dumps(everything, indent=2) + "\n")
    print(f"\n{'benchmark':18}{'minutes':>8}  ended")
    for name, each in found.items():
        ended = "all shown" if each["status"] == 0 else "something was missed" if each["result"] else "failed"
        print(f"{name:18}{each['minutes']:>8.1f}  {ended}")
    return int(any(each["status"] != 0 for each in found.values()))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
