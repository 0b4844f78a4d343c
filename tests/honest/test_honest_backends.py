"""Right candidates on real architectures: every exact backend of a CPU, none rejected."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from honest_models import ARCHITECTURES, make_module

from aitune.testing.graphs import record_graph
from aitune.torch.backend.backend import Backend
from aitune.torch.backend.export import shared_exports
from aitune.torch.backend.onnx_runtime_backend import ONNXRuntimeBackend, ONNXRuntimeBackendConfig
from aitune.torch.backend.openvino_backend import OpenVINOBackend, OpenVINOBackendConfig
from aitune.torch.backend.torch_eager import TorchEagerBackend, TorchEagerBackendConfig
from aitune.torch.backend.torch_inductor_aot_backend import TorchInductorAotBackend
from aitune.torch.backend.torch_inductor_jit_backend import TorchInductorJitBackend
from aitune.torch.module.graph_spec import GraphSpec
from aitune.torch.module.sample import Sample
from aitune.torch.task.reference import References, make_references
from aitune.torch.tune_strategy.candidate import CandidateTask, evaluate_candidate, release

pytest.importorskip("transformers")
pytest.importorskip("onnxruntime")
pytest.importorskip("openvino")

BACKENDS: dict[str, Backend] = {
    "channels last": TorchEagerBackend(TorchEagerBackendConfig(channels_last=True)),
    "onnx": ONNXRuntimeBackend(),
    "onnx traced": ONNXRuntimeBackend(ONNXRuntimeBackendConfig(use_dynamo=False)),
    "openvino": OpenVINOBackend(),
    "openvino through onnx": OpenVINOBackend(OpenVINOBackendConfig(conversion="onnx")),
    "openvino traced": OpenVINOBackend(OpenVINOBackendConfig(conversion="module")),
    "inductor": TorchInductorJitBackend(),
    "inductor ahead": TorchInductorAotBackend(),
}
# Nearly a third of the matrix: every architecture, every backend, and a compiler where compiling is quick.
QUICK = {
    *((name, "onnx") for name in ("cnn", "perceptron", "resnet", "convnext", "vit", "gpt")),
    *((name, "openvino") for name in ("cnn", "lstm", "unet", "audio", "mobilenet", "convnext", "bert", "t5")),
    *((name, "channels last") for name in ("cnn", "unet", "resnet", "mobilenet", "convnext")),
    *((name, "onnx traced") for name in ("cnn", "lstm", "audio", "resnet", "vit")),
    *((name, "openvino traced") for name in ("cnn", "lstm", "audio", "unet", "perceptron")),
    ("perceptron", "inductor"),
    ("perceptron", "inductor ahead"),
}
# What fails with an error, and which; that is no wrong answer.
REFUSED = {
    # Traces keep the sizes of the one run that they saw; at other sizes they fail, and say so.
    ("bert", "onnx traced"): "ONNXRuntimeError",
    ("bert", "openvino traced"): "Exception from",
    ("t5", "onnx traced"): "ONNXRuntimeError",
    ("t5", "openvino traced"): "Exception from",
    # Inductor's own check of strides after frozen weights were laid out anew (torch 2.13).
    ("convnext", "inductor"): "expected size",
}
MATRIX = [
    pytest.param(name, backend, id=f"{name}-{backend}", marks=[] if (name, backend) in QUICK else [pytest.mark.full])
    for name in ARCHITECTURES
    for backend in BACKENDS
]


class Prepared(NamedTuple):
    module: torch.nn.Module
    graph_spec: GraphSpec
    data: list[Sample]
    references: References


@pytest.fixture(scope="module")
def prepare() -> Iterator[Any]:
    """Make each architecture, its references and its export once."""
    known: dict[str, Prepared] = {}

    def make(name: str) -> Prepared:
        if name not in known:
            known.clear()
            module = make_module(name)
            sizes, calls = zip(*ARCHITECTURES[name].calls(), strict=True)
            graph_spec, data = record_graph(module, calls, sizes)
            known[name] = Prepared(module, graph_spec, data, make_references(module, graph_spec, data))
        return known[name]

    with shared_exports(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield make


@pytest.mark.slow
@pytest.mark.parametrize(("name", "backend"), MATRIX)
def test_a_right_candidate_is_accepted(prepare: Any, tmp_path: Path, name: str, backend: str) -> None:
    module, graph_spec, data, references = prepare(name)
    assert len(references.calls) > len(data) + 1, "calls were made up as well"
    task = CandidateTask(BACKENDS[backend].fresh(), module, graph_spec, data, torch.device("cpu"), tmp_path, references)
    evaluated = evaluate_candidate(task)
    outcome = evaluated.outcome
    release(evaluated.backend)
    if (name, backend) in REFUSED:
        assert outcome.status in ("failed", "unavailable")
        assert REFUSED[name, backend] in str(outcome.reason)
        return
    assert outcome.status == "ok", outcome.reason
    assert outcome.agreement is not None
    for figures in outcome.agreement.outputs:
        assert figures.allowed is not None
        assert figures.relative_l2 <= 0.5 * figures.allowed, "right candidates have room to spare"
