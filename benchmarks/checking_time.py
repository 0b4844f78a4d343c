"""How long does it take to check a candidate, against building it?

    python benchmarks/checking_time.py
    python benchmarks/checking_time.py --only bert vit --backends ONNXRuntime OpenVINO

For each architecture of ``tests/honest`` the original's answers are made once, float64 run included; then each backend
is built, activated and checked, with nothing shared between the backends but one export. What is required is the median
of the ratio of both times over all candidates that came through. The share of a model counts the original's answers,
too.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import warnings
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from bench_tools import Requirement, plain, print_requirements, write_json

from aitune.testing.graphs import record_graph
from aitune.torch.backend.export import shared_exports
from aitune.torch.backend.registry import registry
from aitune.torch.task.reference import make_references
from aitune.torch.tune_strategy.candidate import CandidateTask, evaluate_candidate, release

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "honest"))

from honest_models import ARCHITECTURES, make_module  # type: ignore[import-not-found]

BACKENDS = ("ONNXRuntime", "OpenVINO", "TorchInductorJit", "TorchInductorAot")
MOST_RATIO = 1.0


@dataclass(frozen=True)
class Checked:
    """One candidate of one architecture.

    Args:
        architecture: Name of the architecture.
        backend: Registry name of the backend.
        status: How it ended; ``"ok"`` when it was built and agreed.
        build_seconds: Time to build and activate.
        check_seconds: Time to compare with the original.
    """

    architecture: str
    backend: str
    status: str
    build_seconds: float
    check_seconds: float

    @property
    def ratio(self) -> float:
        """Checking time over building time."""
        return self.check_seconds / self.build_seconds


@dataclass(frozen=True)
class Model:
    """All candidates of one architecture.

    Args:
        architecture: Its name.
        reference_seconds: Time of making the original's answers.
        candidates: The candidates, in the order in which they were built.
    """

    architecture: str
    reference_seconds: float
    candidates: tuple[Checked, ...]

    @property
    def share(self) -> float:
        """Share of the original's answers and the checks in checking and building."""
        passed = [each for each in self.candidates if each.status == "ok"]
        checking = self.reference_seconds + sum(each.check_seconds for each in passed)
        return checking / (checking + sum(each.build_seconds for each in passed))


def measure(architecture: str, backends: Sequence[str]) -> Model:
    """Build and check every backend on one architecture.

    Args:
        architecture: Its name.
        backends: Registry names.
    """
    module = make_module(architecture)
    sizes, calls = zip(*ARCHITECTURES[architecture].calls(), strict=True)
    graph_spec, data = record_graph(module, calls, sizes)
    references = make_references(module, graph_spec, data)
    candidates = []
    with shared_exports(), tempfile.TemporaryDirectory() as folder:
        for name in backends:
            task = CandidateTask(
                registry.load(name)(), module, graph_spec, data, torch.device("cpu"), Path(folder, name), references
            )
            evaluated = evaluate_candidate(task)
            release(evaluated.backend)
            found = evaluated.outcome
            candidates.append(Checked(architecture, name, found.status, found.build_seconds, found.check_seconds))
    return Model(architecture, references.seconds, tuple(candidates))


def requirements_of(models: Sequence[Model]) -> list[Requirement]:
    """Return what is to be shown: that checking a candidate takes no longer than building it.

    Args:
        models: What was measured.
    """
    ratios = [each.ratio for model in models for each in model.candidates if each.status == "ok"]
    if not ratios:
        return [Requirement("checking over building, median", "no candidate came through", f"<= {MOST_RATIO}", False)]
    median = statistics.median(ratios)
    value = f"{median:.3f} of {len(ratios)} candidates, {max(ratios):.3f} at most"
    return [Requirement("checking over building, median", value, f"<= {MOST_RATIO}", median <= MOST_RATIO)]


def main(arguments: Sequence[str]) -> int:
    """Measure, print a line for each candidate, and judge.

    Returns:
        1 when checking takes longer than building, else 0.
    """
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=tuple(ARCHITECTURES), default=tuple(ARCHITECTURES))
    parser.add_argument("--backends", nargs="+", choices=BACKENDS, default=BACKENDS)
    parser.add_argument("--json", type=Path, default=None)
    options = parser.parse_args(arguments)
    models = []
    print(f"{'architecture':16}{'backend':20}{'build s':>9}{'check s':>9}{'ratio':>8}")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for architecture in options.only:
            models.append(measure(architecture, options.backends))
            for each in models[-1].candidates:
                times = f"{each.build_seconds:>9.2f}{each.check_seconds:>9.3f}"
                print(f"{architecture:16}{each.backend:20}", end="")
                print(f"{times}{each.ratio:>8.3f}" if each.status == "ok" else f"{each.status:>9}", flush=True)
            took = models[-1].reference_seconds
            print(f"{architecture:16}the original's answers {took:.2f} s; all of checking {models[-1].share:.0%}\n")
    shares = [model.share for model in models]
    print(
        f"all of checking, in checking and building: median {statistics.median(shares):.0%}, {max(shares):.0%} at most"
    )
    requirements = requirements_of(models)
    write_json(options.json, plain(options), [asdict(model) for model in models], requirements)
    return print_requirements(requirements)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
