"""A real tuning run, saved: the evidence it won by and the next best build are in the file."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tuning_models import SleepyNet, plain_answer, samples

import aitune.torch as ait
from aitune.artifact.reading import Artifact
from aitune.testing.tiny_models import seeded
from aitune.torch.backend.onnx_runtime_backend import ONNXRuntimeBackend
from aitune.torch.backend.openvino_backend import OpenVINOBackend


@pytest.mark.slow
def test_evidence_and_alternatives_of_a_real_run(tmp_path: Path) -> None:
    module = seeded(SleepyNet)
    model = ait.Module(module, "sleepy")
    strategy = ait.MaxThroughputStrategy([ONNXRuntimeBackend(), OpenVINOBackend()])
    report = ait.tune(model, samples(), batch_sizes=[1, 2], strategy=strategy)
    chosen = report.winner("sleepy")
    assert chosen is not None
    assert not chosen.is_baseline
    ait.save(model, tmp_path / "one.ait")
    ait.save(model, tmp_path / "none.ait", keep_alternatives=0)
    with Artifact(tmp_path / "none.ait") as artifact:
        assert len(artifact.manifest.modules[0].graphs[0].backends) == 1
    with Artifact(tmp_path / "one.ait") as artifact:
        graph = artifact.manifest.modules[0].graphs[0]
    assert sorted(backend.name for backend in graph.backends) == ["ONNXRuntime", "OpenVINO"]
    assert graph.backends[0].key == chosen.key
    assert graph.evidence is not None
    assert graph.evidence.winner == chosen.key
    assert [c.description for c in graph.evidence.candidates if c.is_baseline]
    winner = next(candidate for candidate in graph.evidence.candidates if candidate.key == chosen.key)
    assert winner.passed
    assert winner.compared_calls > 0
    assert winner.measurements
    x = torch.stack(list(samples(2)))
    wanted = model(x)
    loaded = ait.load(seeded(SleepyNet), tmp_path / "one.ait", strict=True)
    assert torch.equal(loaded(x)["y"], wanted["y"])
    torch.testing.assert_close(wanted["y"], plain_answer(module, x)["y"])
