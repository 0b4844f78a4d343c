"""What real backends make of NaN and of ids beyond their table, as the report says it."""

import pytest
import torch
from torch import nn

from aitune.testing.graphs import call, record_graph
from aitune.torch.backend.onnx_runtime_backend import ONNXRuntimeBackend
from aitune.torch.backend.openvino_backend import OpenVINOBackend
from aitune.torch.config import config
from aitune.torch.report.wording import verdict_and_reason
from aitune.torch.task.outcome import GraphReport
from aitune.torch.task.reference import make_references
from aitune.torch.tune_strategy.candidate import CandidateTask, evaluate_candidate


class Looks(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(10, 4)

    def forward(self, ids, x):
        return self.embedding(ids).sum(1) + x.relu()


def evaluate(backend, tmp_path):
    generator = torch.Generator().manual_seed(0)
    samples = [
        call(torch.randint(0, 10, (size, 3), generator=generator), torch.randn(size, 4, generator=generator))
        for size in (2, 5)
    ]
    module = Looks().eval()
    graph_spec, data = record_graph(module, samples)
    references = make_references(module, graph_spec, data)
    task = CandidateTask(backend, module, graph_spec, data, torch.device("cpu"), tmp_path, references)
    return evaluate_candidate(task).outcome


@pytest.mark.slow
@pytest.mark.parametrize(
    ("backend", "package", "expected"),
    [
        (ONNXRuntimeBackend, "onnxruntime", ["-1 in ids"]),
        (OpenVINOBackend, "openvino", ["NaN in x", "10 in ids", "-1 in ids"]),
    ],
)
def test_the_report_names_what_differs(backend, package, expected, tmp_path):
    pytest.importorskip(package)
    outcome = evaluate(backend(), tmp_path)
    assert outcome.status == "ok", outcome.reason
    assert [found.where.split(",")[0] for found in outcome.agreement.deviations] == expected
    graph = GraphReport("m", "graph0", "", {}, (outcome,), (), None, "", 0.0)
    text = verdict_and_reason(graph, outcome)
    assert all(f"{place}" in text for place in expected)
    assert "gives an answer instead of IndexError" in text


@pytest.mark.slow
def test_strictly_the_first_difference_rejects(tmp_path):
    pytest.importorskip("openvino")
    with config.override(on_exceptional_values="reject"):
        outcome = evaluate(OpenVINOBackend(), tmp_path)
    assert outcome.status == "rejected"
    assert "NaN in x" in outcome.reason
