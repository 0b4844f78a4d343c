"""Tuned modules without a tuning run, and a fresh process that loads what was saved of them."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections import namedtuple
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import nn
from torch.utils import _pytree as pytree

from aitune.testing.graphs import record_graph
from aitune.testing.tiny_models import seeded, tiny_encoder, tiny_encoder_call
from aitune.torch.backend.artifact_path import ArtifactPath
from aitune.torch.backend.backend import Backend
from aitune.torch.backend.registry import registry
from aitune.torch.module.graph_spec import GraphSpec
from aitune.torch.module.plain_data import graph_spec_to_dict
from aitune.torch.module.sample import Sample
from aitune.torch.module.wrapper_module import Module

RUN = Path(__file__).with_name("loading_run.py")


@dataclass
class Encoded:
    hidden: torch.Tensor
    pooled: torch.Tensor


Pair = namedtuple("Pair", ["left", "right"])


class PairNet(nn.Module):
    """Two linear layers that are one, a named tuple around a dict as output."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(8, 8)
        self.second = nn.Linear(8, 8)
        self.second.weight = self.first.weight

    def forward(self, x: torch.Tensor) -> Pair:
        y = self.second(torch.tanh(self.first(x)))
        return Pair(y, {"sum": y.sum(-1), "flag": True})


class DataclassNet(nn.Module):
    """A dataclass as output."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> Encoded:
        y = self.linear(x)
        return Encoded(y, y.mean(-1))


class TwoGraphs(nn.Module):
    """A flag chooses what is computed."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor, double: bool = False) -> torch.Tensor:
        y = torch.tanh(self.linear(x))
        return y * 2 if double else y


class Pipeline:
    """An object that holds modules in a dict and as an attribute, and one that nobody tunes."""

    def __init__(self) -> None:
        self.parts = {"encoder": seeded(TwoGraphs, 1)}
        self.head = seeded(DataclassNet, 2)
        self.scale = seeded(lambda: nn.Linear(4, 4), 3)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return self.scale(self.head(self.parts["encoder"](x)).hidden)


def pair_net() -> nn.Module:
    return seeded(PairNet)


def dataclass_net() -> nn.Module:
    return seeded(DataclassNet)


def two_graphs() -> nn.Module:
    return seeded(TwoGraphs)


def rows(count: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(count, 8, generator=torch.Generator().manual_seed(seed))


def row_calls(**kwargs: Any) -> list[Sample]:
    return [Sample((rows(2),), kwargs), Sample((rows(3),), kwargs)]


def encoder_calls() -> list[Sample]:
    return [tiny_encoder_call(2, 4), tiny_encoder_call(3, 7)]


def set_tuned(module: nn.Module, graphs: Sequence[tuple[Backend, Sequence[Sample]]], folder: Path, name: str) -> Module:
    """Build a backend for each kind of call and let the module run on it."""
    recorded = [record_graph(module, calls) for _, calls in graphs]
    entries = []
    for number, (spec, _) in enumerate(recorded):
        spec.name = f"graph{number}"
        entries.append({"graph_spec": graph_spec_to_dict(spec), "backend": {"number": number}})

    def build(view: nn.Module, state: dict[str, Any]) -> Backend:
        number = state["number"]
        target = folder / f"{name}-{number}"
        target.mkdir(parents=True)
        spec, data = recorded[number]
        return graphs[number][0].fresh().build(view, spec, data, torch.device("cpu"), target)

    return Module.from_dict(module, {"name": name, "graphs": entries}, restore=build)


def encoder_on(backend: Backend, folder: Path, name: str = "encoder") -> Module:
    return set_tuned(tiny_encoder(), [(backend, encoder_calls())], folder, name)


@dataclass
class StoredEncoder:
    """A build of the tiny encoder that was made once; each use gets a copy of its files."""

    state: dict[str, Any]
    spec: GraphSpec

    @classmethod
    def build(cls, backend: Backend, folder: Path) -> StoredEncoder:
        spec, data = record_graph(tiny_encoder(), encoder_calls())
        (folder / "built").mkdir(parents=True)
        state = backend.build(tiny_encoder(), spec, data, torch.device("cpu"), folder / "built").to_dict()
        # Nothing is left where it was built: what refers to that place is found out.
        (folder / "built").rename(folder / "kept")
        return cls({**state, "artifact": ArtifactPath(folder / "kept", state["artifact"].relative_path)}, spec)

    def restore(self, folder: Path) -> Backend:
        artifact = self.state["artifact"]
        shutil.copytree(artifact.root, folder, dirs_exist_ok=True)
        return registry.restore(None, {**self.state, "artifact": ArtifactPath(folder, artifact.relative_path)})

    def tuned(self, folder: Path, name: str = "encoder") -> Module:
        entry = {"graph_spec": graph_spec_to_dict(self.spec), "backend": {}}
        state = {"name": name, "graphs": [entry]}
        return Module.from_dict(tiny_encoder(), state, restore=lambda view, _: self.restore(folder))


def tensors_of(output: Any) -> list[torch.Tensor]:
    return [leaf for leaf in pytree.tree_leaves(output) if isinstance(leaf, torch.Tensor)]


def structure_of(output: Any) -> str:
    return str(pytree.tree_structure(output))


def answers(module: Callable[..., Any], calls: Sequence[Sample]) -> list[Any]:
    with torch.no_grad():
        return [module(*sample.args, **sample.kwargs) for sample in calls]


@dataclass
class FreshAnswers:
    """What a fresh process answered: tensors and structure of each call, and how many calls each graph served."""

    tensors: list[list[torch.Tensor]]
    structures: list[str]
    served: int
    fallbacks: int


def load_in_fresh_process(
    path: Path, calls: Sequence[Sample], spec: GraphSpec, folder: Path, **job: Any
) -> FreshAnswers:
    """Load a file in a new process, run calls there, and return the answers; see ``loading_run.py`` for the job."""
    write_job(path, calls, spec, folder, **job)
    child = run_child(folder)
    assert child.returncode == 0, child.stdout + child.stderr
    return read_answers(folder, len(calls))


def write_job(path: Path, calls: Sequence[Sample], spec: GraphSpec, folder: Path, **job: Any) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    inputs = {
        f"{c}.{t}": tensor.contiguous().clone()
        for c, sample in enumerate(calls)
        for t, tensor in enumerate(spec.input_tensors(*sample))
    }
    save_file(inputs, folder / "inputs")
    (folder / "job.json").write_text(json.dumps({"path": str(path), "calls": len(calls), **job}))


def read_answers(folder: Path, calls: int) -> FreshAnswers:
    found = json.loads((folder / "answer.json").read_text())
    outputs = load_file(folder / "outputs")
    return FreshAnswers(
        [[outputs[name] for name in sorted(outputs) if name.startswith(f"{c}.")] for c in range(calls)],
        found["structures"], found["served"], found["fallbacks"],
    )  # fmt: skip


def run_child(folder: Path) -> subprocess.CompletedProcess[str]:
    environment = {
        **os.environ,
        "AITUNE_CACHE_DIR": str(folder / "cache"),
        "PYTHONPATH": os.pathsep.join([str(RUN.parent), os.environ.get("PYTHONPATH", "")]),
        "OMP_NUM_THREADS": "1",
    }
    return subprocess.run(
        [sys.executable, str(RUN), str(folder)], capture_output=True, text=True, check=False, env=environment,
        timeout=280,
    )  # fmt: skip
