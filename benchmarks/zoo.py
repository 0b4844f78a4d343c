"""What does ``ait.tune`` choose for many kinds of models, against the best there was?

    python benchmarks/zoo.py                                        # everything that is not stored yet
    python benchmarks/zoo.py --only resnet18 minilm --modes exact oracle --again
    python benchmarks/zoo.py --table                                # only what is stored

Each model and mode runs in a process of its own, with empty caches, and leaves one file below ``--out``; a part can be
run again alone. *oracle* builds every candidate, then times all of them and the original module in turn, in long blocks
and random order, with a loop of its own that shares nothing with the selection. The other modes tune, and what they
chose counts as much as the oracle measured for it; *regret* is the share by which the best candidate is faster than
that. All figures are ratios over eager, or seconds of tuning.
"""

from __future__ import annotations

import argparse
import copy
import json
import logging
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from bench_tools import (
    RESULTS,
    Requirement,
    Turn,
    bursting_neighbour,
    geometric_mean,
    plain,
    print_requirements,
    ratios,
    take_turns,
    write_json,
)
from zoo_models import ZOO

import aitune.torch as ait
from aitune.exceptions import AITuneError
from aitune.torch.tune_strategy.default_candidates import ModuleKind, default_aot_candidates

EAGER = "eager"
MAX_RELATIVE_ERROR = 0.02
FACTS_EXACT, FACTS_LOSSY = 1.60, 2.5
"""Speed-ups that are asked for on two cores of a server with AVX-512, VNNI and bf16."""

BUSY_KINDS = ("resnet18", "minilm")


@dataclass(frozen=True)
class Mode:
    """One way to run a model.

    Args:
        batch_sizes: Batch sizes to tune for.
        threads: Threads of a call.
        time_budget: Seconds that tuning may take.
        may_lose_precision: Whether candidates that give precision away take part.
        is_disturbed: Whether a second process burns a core in bursts meanwhile.
        oracle: Mode that measured every candidate under the same conditions; ``None`` for such a mode itself.
    """

    batch_sizes: tuple[int, ...] = (1,)
    threads: int = 1
    time_budget: float | None = None
    may_lose_precision: bool = False
    is_disturbed: bool = False
    oracle: str | None = "oracle"


MODES = {
    "exact": Mode(),
    "budget20": Mode(time_budget=20.0),
    "lossy": Mode(may_lose_precision=True),
    "oracle": Mode(may_lose_precision=True, oracle=None),
    "sweep": Mode(batch_sizes=(1, 2, 4, 8)),
    "threads2": Mode(threads=2),
    "oracle2": Mode(threads=2, oracle=None),
    "busy": Mode(is_disturbed=True),
}


# -- one model, one mode: what runs in a process of its own ------------------------------------------------------------


def _budget(mode: Mode) -> ait.AccuracyBudget | None:
    return ait.AccuracyBudget(max_relative_error=MAX_RELATIVE_ERROR) if mode.may_lose_precision else None


def tune_once(kind: str, mode: Mode, seed: int) -> dict[str, Any]:
    """Tune one model as a user would, and return what was chosen."""
    torch.manual_seed(0)
    module = ait.Module(ZOO[kind].make().eval(), kind)
    samples = ZOO[kind].samples()
    with bursting_neighbour(seed) if mode.is_disturbed else nullcontext(), ait.config.override(seed=seed):
        report = ait.tune(
            module, samples, batch_sizes=mode.batch_sizes, max_num_batches_per_batch_size=2,
            time_budget=mode.time_budget, accuracy_budget=_budget(mode), ignore_failing_modules=False,
        )  # fmt: skip
    graph = report.modules[0].graphs[0]
    outcomes = {outcome.key: outcome for outcome in graph.outcomes}
    winner = outcomes[graph.winner or ""]
    own = [c for c in graph.comparisons if c.candidate == winner.key and outcomes[c.opponent].is_baseline]
    return {
        "winner": EAGER if winner.is_baseline else winner.key,
        "description": EAGER if winner.is_baseline else winner.description,
        "speedup_in_report": own[0].speedup if own else 1.0,
        "seconds": report.seconds,
        "reason": graph.reason,
        "outcomes": {o.description: f"{o.status}: {o.reason}" if o.reason else o.status for o in graph.outcomes},
        "build_seconds": {o.description: o.build_seconds for o in graph.outcomes},
    }


def measure_all(kind: str, mode: Mode, rounds: int) -> dict[str, Any]:
    """Build every candidate, and time all that agree with the original in turn."""
    torch.manual_seed(0)
    original = ZOO[kind].make().eval()
    samples = ZOO[kind].samples()
    args, kwargs = _call(samples[0])
    turn = Turn(rounds=rounds, pause_seconds=0.02 if mode.threads == 1 else 0.1)
    alone = take_turns({EAGER: lambda: original(*args, **kwargs)}, replace(turn, rounds=max(rounds // 3, 3)))
    calls: dict[str, Any] = {EAGER: lambda: original(*args, **kwargs)}
    names, exact = {EAGER: EAGER}, [EAGER]
    failed: dict[str, str] = {}
    kinds = replace(ModuleKind.of(original), may_lose_precision=mode.may_lose_precision)
    for backend in default_aot_candidates(kinds, distributed=False):
        module = ait.Module(copy.deepcopy(original), f"{kind}-{len(names) + len(failed)}")
        strategy = ait.OneBackendStrategy(backend).enable_performance_validation(False)
        try:
            ait.tune(
                module, samples, batch_sizes=mode.batch_sizes, max_num_batches_per_batch_size=2, strategy=strategy,
                accuracy_budget=_budget(mode), ignore_failing_modules=False,
            )  # fmt: skip
        except AITuneError as error:
            failed[backend.describe()] = str(error)
            continue
        calls[backend.key()] = lambda module=module: module(*args, **kwargs)
        names[backend.key()] = backend.describe()
        exact += [backend.key()] if backend.is_exact else []
    times = take_turns(calls, turn)
    return {
        "speedups": ratios(times, EAGER),
        "names": names,
        "exact": exact,
        "failed": failed,
        # What live runtimes cost the original: near 1, or the ratios above flatter the candidates.
        "eager_beside_over_alone": statistics.median(times[EAGER]) / statistics.median(alone[EAGER]),
    }


def _call(sample: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    if isinstance(sample, dict):
        return (), {name: tensor[None] for name, tensor in sample.items()}
    return (sample[None],), {}


def work(kind: str, name: str, options: argparse.Namespace) -> dict[str, Any]:
    """Run one model in one mode in this process."""
    mode = MODES[name]
    torch.set_num_threads(mode.threads)
    logging.getLogger("aitune").setLevel(logging.ERROR)
    if mode.oracle is None:
        return measure_all(kind, mode, options.rounds)
    return tune_once(kind, mode, options.seed)


# -- all of them -------------------------------------------------------------------------------------------------------


def jobs(options: argparse.Namespace) -> list[tuple[str, str, int]]:
    """Return which model runs in which mode, and the number of the run."""
    listed = []
    for kind in options.only:
        for mode in options.modes:
            if MODES[mode].is_disturbed and kind not in BUSY_KINDS:
                continue
            listed += [(kind, mode, number) for number in range(options.runs if MODES[mode].is_disturbed else 1)]
    return listed


def stored(options: argparse.Namespace, kind: str, mode: str, number: int = 0) -> Path:
    """Return the file of one result."""
    folder: Path = options.out
    return folder / f"{kind}-{mode}{f'-{number}' if MODES[mode].is_disturbed else ''}.json"


def run_apart(options: argparse.Namespace, kind: str, mode: str, number: int) -> None:
    """Run one model in one mode in a process of its own, with empty caches, and store what it found."""
    path = stored(options, kind, mode, number)
    if path.exists() and not options.again:
        return
    with tempfile.TemporaryDirectory() as folder:
        caches = {"AITUNE_CACHE_DIR": f"{folder}/aitune", "TORCHINDUCTOR_CACHE_DIR": f"{folder}/inductor"}
        threads = str(MODES[mode].threads)
        command = [sys.executable, __file__, "--worker", kind, mode, f"{folder}/result.json"]
        ended = subprocess.run(
            [*command, "--rounds", str(options.rounds), "--seed", str(options.seed + number)],
            env={**os.environ, **caches, "OMP_NUM_THREADS": threads}, capture_output=True, text=True,
            timeout=options.timeout, check=False,
        )  # fmt: skip
        if ended.returncode != 0:
            print(f"{kind} {mode}: ended with {ended.returncode}\n{ended.stderr[-2000:]}", flush=True)
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(Path(folder, "result.json").read_text())
    print(f"{kind} {mode}: {_in_short(json.loads(path.read_text()))}", flush=True)


def _in_short(result: dict[str, Any]) -> str:
    if "speedups" in result:
        ordered = sorted(result["speedups"].items(), key=lambda item: -item[1])
        return ", ".join(f"{result['names'][key]} {speedup:.2f}" for key, speedup in ordered)
    return f"{result['description']} in {result['seconds']:.0f} s"


# -- what it came to ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Judged:
    """A choice against the oracle.

    Args:
        kind: The model.
        mode: How it was tuned.
        chosen: What was chosen.
        speedup: How many times as fast as eager the oracle measured it.
        best: What the oracle measured as the fastest.
        best_speedup: How fast that is.
        seconds: Seconds of tuning.
    """

    kind: str
    mode: str
    chosen: str
    speedup: float
    best: str
    best_speedup: float
    seconds: float

    @property
    def regret(self) -> float:
        """Share by which the best is faster."""
        return self.best_speedup / self.speedup - 1.0


def judge(kind: str, mode: str, choice: dict[str, Any], oracle: dict[str, Any]) -> Judged:
    """Look up what the oracle measured for a choice, and for the best that was allowed."""
    allowed = oracle["speedups"]
    if not MODES[mode].may_lose_precision:
        allowed = {key: speedup for key, speedup in allowed.items() if key in oracle["exact"]}
    best = max(allowed, key=lambda key: allowed[key])
    # A choice that the oracle could not build again has no figure there; its own is the only one.
    speedup = allowed.get(choice["winner"], choice["speedup_in_report"])
    return Judged(
        kind, mode, choice["description"], speedup, oracle["names"][best], max(allowed[best], speedup),
        choice["seconds"],
    )  # fmt: skip


def judge_all(options: argparse.Namespace) -> list[Judged]:
    """Judge every stored choice whose oracle is stored as well."""
    judged = []
    for kind in ZOO:
        for name, mode in MODES.items():
            if mode.oracle is None or len(mode.batch_sizes) > 1:
                continue
            oracle = stored(options, kind, mode.oracle)
            for number in range(options.runs if mode.is_disturbed else 1):
                choice = stored(options, kind, name, number)
                if oracle.exists() and choice.exists():
                    judged.append(judge(kind, name, json.loads(choice.read_text()), json.loads(oracle.read_text())))
    return judged


def print_table(options: argparse.Namespace, judged: Sequence[Judged]) -> None:
    """Print every choice, the batch sweep beside them, and one line a mode."""
    print(f"\n{'model':16}{'mode':10}{'chosen':44}{'x eager':>8}{'oracle':>8}{'regret':>8}{'s':>6}")
    for row in judged:
        print(
            f"{row.kind:16}{row.mode:10}{row.chosen[:43]:44}{row.speedup:>8.2f}{row.best_speedup:>8.2f}"
            f"{row.regret:>8.1%}{row.seconds:>6.0f}"
        )
    for kind in ZOO:
        path = stored(options, kind, "sweep")
        if path.exists():
            found = json.loads(path.read_text())
            print(
                f"{kind:16}{'sweep':10}{found['description'][:43]:44}{found['speedup_in_report']:>8.2f}"
                f"{'-':>8}{'-':>8}{found['seconds']:>6.0f}"
            )
    for mode in MODES:
        rows = [row for row in judged if row.mode == mode]
        if rows:
            oracle = geometric_mean([row.best_speedup for row in rows])
            worst, seconds = max(row.regret for row in rows), statistics.median(row.seconds for row in rows)
            print(
                f"{mode}: geometric mean {_mean(rows):.2f} x eager, oracle {oracle:.2f}, mean regret "
                f"{_mean_regret(rows):.1%}, worst {worst:.1%}, median {seconds:.0f} s"
            )


def _mean(rows: Sequence[Judged]) -> float:
    return geometric_mean([row.speedup for row in rows])


def _mean_regret(rows: Sequence[Judged]) -> float:
    return statistics.fmean(row.regret for row in rows)


def requirements(judged: Sequence[Judged]) -> list[Requirement]:
    """Say what was to be shown, and whether it was."""
    by_mode = {mode: [row for row in judged if row.mode == mode] for mode in MODES}
    shown = []
    for mode, share, least in (("exact", 0.95, FACTS_EXACT), ("lossy", 0.90, FACTS_LOSSY)):
        rows = by_mode[mode]
        if not rows:
            continue
        mean, oracle = _mean(rows), geometric_mean([row.best_speedup for row in rows])
        is_whole = len(rows) == len(ZOO)
        shown += [
            _at_least(f"{mode}, geometric mean over that of the oracle", mean / oracle, share, is_whole),
            _at_least(f"{mode}, geometric mean over eager", mean, least, is_whole),
        ]
    if rows := by_mode["exact"]:
        shown += [
            _at_least("exact, slowest model over eager", min(row.speedup for row in rows), 0.99, True),
            _at_most("exact, worst regret", max(row.regret for row in rows), 0.10),
            _at_most("exact, median seconds a model", statistics.median(row.seconds for row in rows), 60.0),
        ]
    if rows := by_mode["budget20"]:
        shown.append(_at_most("20 s, mean regret", _mean_regret(rows), 0.10))
    for kind in BUSY_KINDS:
        if rows := [row for row in by_mode["busy"] if row.kind == kind]:
            low = sum(row.regret <= 0.05 for row in rows)
            enough = len(rows) >= 10
            met = low >= 0.9 * len(rows) if enough else None
            shown.append(Requirement(f"{kind} beside bursts, regret at most 5%", f"{low} of {len(rows)}", "90%", met))
    return shown


def _at_least(what: str, value: float, wanted: float, is_whole: bool) -> Requirement:
    return Requirement(what, f"{value:.3f}", f"at least {wanted:g}", value >= wanted if is_whole else None)


def _at_most(what: str, value: float, wanted: float) -> Requirement:
    return Requirement(what, f"{value:.3f}", f"at most {wanted:g}", value <= wanted)


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=ZOO, default=list(ZOO), help="models (default: all)")
    parser.add_argument("--modes", nargs="+", choices=MODES, default=list(MODES), help="modes (default: all)")
    parser.add_argument("--again", action="store_true", help="also run what is stored already")
    parser.add_argument("--table", action="store_true", help="only show what is stored")
    parser.add_argument("--out", type=Path, default=RESULTS / "zoo", help="folder of the parts")
    parser.add_argument("--json", type=Path, default=RESULTS / "zoo.json", help="file for the table")
    parser.add_argument("--rounds", type=int, default=40, help="blocks of each contestant of the oracle")
    parser.add_argument("--runs", type=int, default=10, help="runs beside a second process")
    parser.add_argument("--timeout", type=float, default=1800.0, help="seconds for one model in one mode")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--worker", nargs=3, help=argparse.SUPPRESS)
    return parser.parse_args(arguments)


def main(arguments: Sequence[str]) -> int:
    """Run what was asked for, and print the table.

    Returns:
        1 when something that was to be shown was missed, else 0.
    """
    options = parse(arguments)
    if options.worker:
        kind, mode, path = options.worker
        Path(path).write_text(json.dumps(work(kind, mode, options), indent=2))
        return 0
    for kind, mode, number in [] if options.table else jobs(options):
        run_apart(options, kind, mode, number)
    judged = judge_all(options)
    print_table(options, judged)
    shown = requirements(judged)
    write_json(options.json, plain(options), [{**vars(row), "regret": row.regret} for row in judged], shown)
    return print_requirements(shown)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
