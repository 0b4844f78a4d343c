from dataclasses import replace

import pytest
import torch
from explain_backends import BadGeluBackend
from torch import nn

import aitune.torch as ait
from aitune.exceptions import AITuneUserInputError
from aitune.testing.fakes import FakeBackend, add_offset
from aitune.testing.tiny_models import seeded
from aitune.torch.backend.registry import BackendEntry, BackendRegistry, override_registry, registry
from aitune.torch.module.sample import Sample
from aitune.torch.report.explanation import explain_outcome
from aitune.torch.task.outcome import Agreement, CandidateOutcome, Rejection
from aitune.torch.tune_strategy.localize import first_divergence


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(16), nn.Linear(16, 32), nn.Linear(32, 16)

    def forward(self, x):
        return x + self.down(nn.functional.gelu(self.up(self.norm(x))))


class Branches(nn.Module):
    """Two branches; the first is right, and their sum comes late."""

    def __init__(self):
        super().__init__()
        self.plain = nn.Sequential(*[nn.Linear(16, 16) for _ in range(12)])
        self.late = Block()

    def forward(self, x, scale=1.0):
        return {"y": self.plain(x).tanh() + scale * self.late(x).relu()}


def failing(*places, calls=()):
    failures = tuple(
        Rejection("value", output, (0,), "1.5", "1.25", "relative L2 error 1e-05, is 0.2", where)
        for output, where in places
    )
    agreement = Agreement(False, (), failures[0], calls, (), failures)
    return CandidateOutcome("X", "x", "X", "rejected", "check", reason=str(failures[0]), agreement=agreement)


@pytest.mark.parametrize(
    ("check", "is_of_values"), [("value", True), ("finite", True), ("random", False), ("state", False), ("type", False)]
)
def test_a_module_is_asked_for_only_where_an_operation_can_be_at_fault(check, is_of_values):
    failure = Rejection(check, "output", None, "a", "b", "none", "sample 0")
    outcome = replace(failing(("output", "sample 0")), agreement=Agreement(False, (), failure, (), (), (failure,)))
    assert ("Inside the graph" in str(explain_outcome(outcome))) is is_of_values


CALLS = (
    "sample 0",
    "corner batch0=1, dim0=4",
    "corner batch0=4, dim0=4",
    "corner batch0=4, dim0=9",
    "inside batch0=2, dim0=7",
)


@pytest.mark.parametrize(
    ("places", "said"),
    [
        ((("y", CALLS[3]),), ["only at sizes that were not recorded", "with dim0=9"]),
        ((("y", CALLS[3]), ("y", CALLS[4])), ["only y is wrong", "with dim0 of 7 and more"]),
        ((("y", CALLS[1]),), ["with batch0=1"]),
        ((("y", "sample 0"), ("z", CALLS[1])), []),
    ],
)  # fmt: skip
def test_what_the_failing_calls_have_in_common(places, said):
    explanation = explain_outcome(failing(*places, calls=CALLS))
    text = str(explanation)
    assert f"{len(places)} of 5 compared calls disagree" in text
    assert all(any(part in pattern for pattern in explanation.patterns) for part in said)
    assert len(explanation.patterns) >= len(said)
    if not said:
        assert not any("recorded" in pattern for pattern in explanation.patterns)
    assert "give the module and a call that disagrees" in text


def test_inputs_that_are_not_contiguous_are_a_pattern():
    calls = ("sample 0", "sample 0, not contiguous")
    assert "not contiguous in memory" in str(explain_outcome(failing(("y", calls[1]), calls=calls)))


def test_an_accepted_candidate_and_one_that_failed(report):
    assert str(report.explain("ONNX Runtime")) == "ONNX Runtime: it was accepted"
    assert "no such operator" in str(report.explain("Inductor AOT"))


def test_candidates_are_found_by_key_and_description_and_place(report):
    assert report.explain("openvino-key") == report.explain("OpenVINO f32", module="encoder", graph="graph0")
    with pytest.raises(AITuneUserInputError, match="no candidate 'nothing' there; its candidates: 'Inductor AOT'"):
        report.explain("nothing")
    with pytest.raises(AITuneUserInputError, match="no candidate"):
        report.explain("OpenVINO f32", graph="graph7")
    twice = replace(report, modules=(report.modules[0], replace(report.modules[0], name="other")))
    with pytest.raises(AITuneUserInputError, match="module='encoder', graph='graph0', module='other'"):
        twice.explain("OpenVINO f32")
    with pytest.raises(AITuneUserInputError, match="without model="):
        report.explain("OpenVINO f32", inputs=torch.rand(2))
    with pytest.raises(AITuneUserInputError, match="without inputs="):
        report.explain("OpenVINO f32", seeded(Block))


# -- inside the graph ----------------------------------------------------------------------------------------------


def test_the_first_wrong_operation_of_a_chain():
    module = seeded(lambda: nn.Sequential(nn.Linear(16, 16), nn.ReLU(), *[Block() for _ in range(7)]))
    found = first_divergence(BadGeluBackend(), module, Sample((torch.randn(3, 16),), {}))
    assert (found.part, found.operation, found.note) == ("2", "aten.gelu.default", "")
    assert found.relative_error == pytest.approx(1e-3, rel=0.01)
    assert found.allowed < 1e-4
    assert found.builds <= 4
    assert "first differs in 2, at aten.gelu.default: relative error 0.001" in str(found)


def test_a_wrong_branch_is_told_from_the_right_one_before_it():
    module = seeded(Branches)
    found = first_divergence(BadGeluBackend(), module, Sample((torch.randn(3, 16),), {"scale": 0.5}))
    assert (found.part, found.operation) == ("late", "aten.gelu.default")


def test_the_module_is_as_before_and_a_right_candidate_has_no_divergence():
    module = seeded(Block)
    before = {name: value.clone() for name, value in module.state_dict().items()}
    found = first_divergence(FakeBackend(), module, Sample((torch.randn(3, 16),), {}))
    assert not found.is_found
    assert "every intermediate value agrees" in str(found)
    assert all(torch.equal(before[name], value) for name, value in module.state_dict().items())


def test_a_graph_that_cannot_be_exported_says_so():
    class Branchy(nn.Module):
        def forward(self, x):
            return x * 2 if x.sum() > 0 else x

    found = first_divergence(FakeBackend(alter=add_offset), Branchy(), Sample((torch.rand(3),), {}))
    assert "cannot be taken apart: torch.export refused the module" in str(found)


def test_a_search_that_may_not_go_on_says_what_it_knows():
    module = seeded(lambda: nn.Sequential(*[Block() for _ in range(12)]))
    found = first_divergence(BadGeluBackend(), module, Sample((torch.randn(3, 16),), {}), max_builds=1)
    assert found.is_found
    assert "operations before it may be the cause" in found.note


@pytest.mark.slow
def test_a_quantised_runtime_first_differs_in_its_first_matrix_product():
    pytest.importorskip("onnxruntime")
    from aitune.torch.backend.onnx_runtime_backend import ONNXRuntimeBackend, ONNXRuntimeBackendConfig

    module = seeded(lambda: nn.Sequential(*[Block() for _ in range(3)]))
    sample = Sample((torch.randn(3, 16, generator=torch.Generator().manual_seed(0)),), {})
    quantized = ONNXRuntimeBackend(ONNXRuntimeBackendConfig(quantization="int8_dynamic"))
    found = first_divergence(quantized, module, sample)
    assert (found.part, found.operation) == ("0.up", "aten.linear.default")
    assert 1e-4 < found.relative_error < 0.1
    assert not first_divergence(ONNXRuntimeBackend(), module, sample).is_found


def test_explain_finds_the_operation_of_a_real_run():
    model = ait.Module(seeded(Block), "explained")
    entry = BackendEntry("BadGelu", "explain_backends:BadGeluBackend")
    with override_registry(BackendRegistry([*registry.entries, entry])):
        rows = [torch.randn(16, generator=torch.Generator().manual_seed(number)) for number in range(4)]
        strategy = ait.MaxThroughputStrategy([BadGeluBackend()])
        report = ait.tune(model, rows, batch_sizes=[1, 2], strategy=strategy)
        (outcome,) = [found for found in report.module("explained").graphs[0].outcomes if not found.is_baseline]
        assert outcome.status == "rejected"
        x = torch.stack(rows)
        explanation = type(report).from_json(report.to_json()).explain("Fake(bad gelu)", model, x)
        assert explanation.divergence.operation == "aten.gelu.default"
        assert "all" not in explanation.patterns
        assert len(explanation.failures) == len(explanation.calls)
        assert "Inside the graph: first differs in the module itself, at aten.gelu.default" in str(explanation)
        for kept in (report.explain("Fake(bad gelu)"), report.explain("Fake(bad gelu)", model)):
            assert kept.divergence.operation == "aten.gelu.default"
        with pytest.raises(AITuneUserInputError, match="no call of Block"):
            report.explain("Fake(bad gelu)", model, (x, x))
        with pytest.raises(AITuneUserInputError, match="needs the module"):
            report.explain("Fake(bad gelu)", "model", x)
    with pytest.raises(AITuneUserInputError, match="cannot be made again here"):
        report.explain("Fake(bad gelu)", model, x)
    assert "cannot be made again here" in str(report.explain("Fake(bad gelu)"))
    model.unwrap()
    assert "not looked at; give the module" in str(report.explain("Fake(bad gelu)"))
