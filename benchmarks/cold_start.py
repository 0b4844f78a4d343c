"""How long is it from the start of a process to the first answer, against the eager module?

    python benchmarks/cold_start.py --json benchmarks/results/cold_start.json

Each model is built for each backend and saved once. Then fresh processes take turns, in random order within each round:
one imports torch and what the module is written with, makes the module with its weights and calls it; the others import
``aitune.torch``, load the file without the original module, and call it. Imports count, and so does starting Python.
The first round fills the file cache and is not counted. Only ratios over eager are printed.
"""

from __future__ import annotations

import argparse
import functools
import logging
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from bench_tools import RESULTS, in_turn, plain, write_json
from zoo_models import ZOO

import aitune.torch as ait
from aitune.torch.backend.registry import registry

BACKENDS = ("ONNXRuntime", "OpenVINO", "TorchInductorAot")
KINDS = ("resnet18", "minilm")
EAGER = "eager"

_PREPARE = """
import sys, time, torch
torch.set_num_threads(int(sys.argv[1]))
args, kwargs = torch.load(sys.argv[2])
"""
_EAGER = """
sys.path.insert(0, {benchmarks!r})
from zoo_models import ZOO
model = ZOO[{kind!r}].make().eval()
"""
_LOAD = """
{imports}
import aitune.torch as ait
model = ait.load(None, {path!r}, strict=True)
"""
_ANSWER = """
with torch.no_grad():
    model(*args, **kwargs)
print(time.time())
"""


@dataclass(frozen=True)
class Row:
    """One row of the table.

    Args:
        model: The model.
        way: The backend, or eager.
        ratio: How many times as long as eager the start takes: median over the rounds.
        low: Smallest ratio of a round.
        high: Largest ratio of a round.
    """

    model: str
    way: str
    ratio: float
    low: float
    high: float


def save_for(kind: str, backend: str, folder: Path) -> Path:
    """Build a model for one backend, and save it.

    Args:
        kind: The model.
        backend: Name of the backend.
        folder: Where the file goes.
    """
    module = ait.Module(ZOO[kind].make().eval(), kind)
    strategy = ait.OneBackendStrategy(registry.load(backend)()).enable_performance_validation(False)
    ait.tune(
        module, ZOO[kind].samples(), batch_sizes=(1,), max_num_batches_per_batch_size=1, strategy=strategy,
        ignore_failing_modules=False,
    )  # fmt: skip
    path = folder / f"{kind}-{backend}.ait"
    ait.save(module, path)
    return path


def save_call(kind: str, folder: Path) -> Path:
    """Save the arguments of one call, for all processes alike."""
    sample = ZOO[kind].samples()[0]
    path = folder / f"{kind}-call.pt"
    call = ((), {n: t[None] for n, t in sample.items()}) if isinstance(sample, dict) else ((sample[None],), {})
    torch.save(call, path)
    return path


def program_for(kind: str, artifact: Path | None) -> str:
    """Return the program that loads and calls: the artifact, or without one the module itself."""
    if artifact is None:
        benchmarks = str(Path(__file__).resolve().parent)
        return _PREPARE + _EAGER.format(benchmarks=benchmarks, kind=kind) + _ANSWER
    # The outputs of these models are of classes of this library, which has to be there to make them again.
    imports = "import transformers.modeling_outputs"
    return _PREPARE + _LOAD.format(imports=imports, path=str(artifact)) + _ANSWER


def time_start(program: str, call: Path, threads: int) -> float:
    """Return the seconds from the start of a fresh process to its first answer.

    Args:
        program: What it runs; it prints the time of day at the end.
        call: File with the arguments of the call.
        threads: Threads of one call.
    """
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}
    begin = time.time()
    answer = subprocess.run(
        [sys.executable, "-c", program, str(threads), str(call)],
        capture_output=True,
        text=True,
        check=False,
        env=environment,
    )
    if answer.returncode != 0:
        raise SystemExit(f"a measured process failed:\n{answer.stderr}")
    return float(answer.stdout.split()[-1]) - begin


def measure(kind: str, folder: Path, options: argparse.Namespace) -> list[Row]:
    """Time every way to start one model."""
    call = save_call(kind, folder)
    programs = {EAGER: program_for(kind, None)}
    for backend in options.backends:
        programs[backend] = program_for(kind, save_for(kind, backend, folder))
    tasks = {name: functools.partial(time_start, text, call, options.threads) for name, text in programs.items()}
    seconds = in_turn(tasks, options.rounds, options.seed)
    rows = []
    for way, times in seconds.items():
        by_round = [own / eager for own, eager in zip(times, seconds[EAGER], strict=True)]
        rows.append(Row(kind, way, statistics.median(by_round), min(by_round), max(by_round)))
    return rows


def main(arguments: Sequence[str]) -> int:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=ZOO, default=list(KINDS), help="models")
    parser.add_argument("--backends", nargs="+", default=list(BACKENDS), help="names of backends")
    parser.add_argument("--rounds", type=int, default=7, help="rounds that count")
    parser.add_argument("--threads", type=int, default=1, help="threads of one call")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, default=RESULTS / "cold_start.json")
    options = parser.parse_args(arguments)
    torch.set_num_threads(options.threads)
    logging.getLogger("aitune").setLevel(logging.ERROR)
    rows: list[Row] = []
    print(f"{'model':16}{'way':20}{'x eager':>8}   smallest to largest")
    for kind in options.only:
        with tempfile.TemporaryDirectory() as folder, ait.config.override(cache_dir=Path(folder) / "cache"):
            found = measure(kind, Path(folder), options)
        rows += found
        for row in found:
            print(f"{row.model:16}{row.way:20}{row.ratio:>8.2f}   {row.low:.2f} to {row.high:.2f}", flush=True)
        write_json(options.json, plain(options), [asdict(row) for row in rows])
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
