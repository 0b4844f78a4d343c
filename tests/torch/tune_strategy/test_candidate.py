import importlib.util
import pickle
import subprocess
import sys

import pytest
import torch
from strategy_parts import CPU

from aitune.exceptions import BuildError
from aitune.testing.fakes import FakeBackend, add_offset
from aitune.testing.graphs import call, record_graph
from aitune.testing.tiny_models import CallCounter, TinyMLP, seeded, tiny_encoder, tiny_encoder_call
from aitune.torch.backend.artifact_path import ArtifactPath
from aitune.torch.backend.registry import registry
from aitune.torch.task.correctness import check
from aitune.torch.task.reference import make_references
from aitune.torch.tune_strategy.candidate import CandidateTask, as_served, describe_candidate, evaluate_candidate


def make_task(backend, build_dir, module=None, samples=None, checked=True):
    module = seeded(TinyMLP) if module is None else module
    samples = [call(torch.ones(2, 8)), call(torch.arange(32.0).reshape(4, 8))] if samples is None else samples
    graph_spec, data = record_graph(module, samples)
    references = make_references(module, graph_spec, data) if checked else None
    return CandidateTask(backend, module, graph_spec, data, CPU, build_dir, references)


class Closing(FakeBackend):
    """Says when it was deactivated."""

    closed = 0

    def _deactivate(self):
        type(self).closed += 1
        if self.label == "stuck":
            raise RuntimeError("stuck")


# -- how a candidate may end -----------------------------------------------------------------------------------------


def test_one_that_comes_through(tmp_path):
    stages = []
    evaluated = evaluate_candidate(make_task(FakeBackend("good"), tmp_path / "build"), stages.append)
    outcome = evaluated.outcome
    assert stages == ["build", "check"]
    assert (outcome.status, outcome.stage, outcome.reason) == ("ok", "check", None)
    assert outcome.agreement.passed
    assert outcome.state == {"backend": "Fake", "label": "good", "graph": "graph0"}
    assert evaluated.backend.is_active
    assert evaluated.error is None
    assert outcome.build_seconds > 0
    assert outcome.check_seconds > 0


@pytest.mark.parametrize(("notes", "kept"), [(None, ()), ((), ()), (("fast", 2), ("fast", "2"))])
def test_notes_of_any_kind_become_texts(tmp_path, notes, kept):
    backend = FakeBackend()
    backend.notes = notes
    assert evaluate_candidate(make_task(backend, tmp_path)).outcome.notes == kept


@pytest.mark.parametrize(
    ("backend", "status", "stage", "error_type", "reason"),
    [
        (FakeBackend("x", fails_at="can_run"), "unavailable", "availability", None, "x cannot run on purpose"),
        (FakeBackend("x", fails_at="build"), "failed", "build", "BuildError", "x fails at build on purpose"),
        (FakeBackend("x", fails_at="activate"), "failed", "build", "RuntimeError", "x fails at activate on purpose"),
        (FakeBackend("x", fails_at="infer"), "failed", "check", "RuntimeError", "x fails at infer on purpose"),
        (FakeBackend("x", alter=add_offset), "rejected", "check", None, "value differs at output"),
    ],
    ids=["unavailable", "build", "activate", "infer", "wrong"],
)
def test_one_that_does_not(tmp_path, backend, status, stage, error_type, reason):
    evaluated = evaluate_candidate(make_task(backend, tmp_path))
    outcome = evaluated.outcome
    assert (outcome.status, outcome.stage, outcome.error_type) == (status, stage, error_type)
    assert reason in outcome.reason
    assert evaluated.backend is None
    assert (evaluated.error is not None) == (status == "failed")


def test_the_error_is_kept_with_its_cause(tmp_path):
    error = evaluate_candidate(make_task(FakeBackend("x", fails_at="build"), tmp_path)).error
    assert isinstance(error, BuildError)
    assert isinstance(error.__cause__, RuntimeError)


def test_one_that_is_wrong_is_freed_even_when_it_resists(tmp_path):
    Closing.closed = 0
    assert evaluate_candidate(make_task(Closing("x", add_offset), tmp_path)).outcome.status == "rejected"
    assert evaluate_candidate(make_task(Closing("stuck", add_offset), tmp_path)).outcome.status == "rejected"
    assert Closing.closed == 2


def test_an_interrupt_passes_and_frees_it(tmp_path):
    class Interrupted(Closing):
        def _infer(self, *args, **kwargs):
            raise KeyboardInterrupt

    Closing.closed = Interrupted.closed = 0
    with pytest.raises(KeyboardInterrupt):
        evaluate_candidate(make_task(Interrupted("x"), tmp_path))
    assert Interrupted.closed == 1


def test_without_references_nothing_is_compared(tmp_path):
    evaluated = evaluate_candidate(make_task(FakeBackend("x", alter=add_offset), tmp_path, checked=False))
    assert (evaluated.outcome.status, evaluated.outcome.agreement) == ("ok", None)


def test_a_module_is_left_as_it_was(tmp_path):
    module = seeded(CallCounter)
    task = make_task(FakeBackend("x"), tmp_path, module)
    before = module.calls.clone()
    evaluate_candidate(task)
    assert torch.equal(module.calls, before)


def test_the_configuration_itself_is_not_built(tmp_path):
    backend = FakeBackend("x")
    evaluate_candidate(make_task(backend, tmp_path))
    assert not backend.is_active


def test_a_description_says_that_nothing_was_tried():
    outcome = describe_candidate(FakeBackend("x", is_exact=False))
    assert (outcome.status, outcome.stage, outcome.is_exact, outcome.is_baseline) == (
        "skipped",
        "availability",
        False,
        False,
    )


def test_what_is_served_is_measured_behind_its_guard(tmp_path):
    task = make_task(FakeBackend("x", alter=add_offset), tmp_path, checked=False)
    served = as_served(task.module, task.graph_spec, evaluate_candidate(task).backend)
    x = torch.ones(3, 8)
    with torch.no_grad():
        assert torch.equal(served.module(x), task.module(x) + 1e-2)
        assert torch.equal(served.module(torch.ones(9, 8)), task.module(torch.ones(9, 8)))
    assert served.stats().served == {"graph0": 1}


# -- in another process ----------------------------------------------------------------------------------------------

CHILD = """
import pickle, sys
from pathlib import Path
from aitune.torch.tune_strategy.candidate import CandidateTask, evaluate_candidate
from aitune.torch.task.reference import make_references
def evaluated(plain):
    references = make_references(plain["module"], plain["graph_spec"], plain["data"])
    return evaluate_candidate(CandidateTask(references=references, **plain)).outcome
tasks = pickle.loads(Path(sys.argv[1]).read_bytes())
Path(sys.argv[2]).write_bytes(pickle.dumps([evaluated(plain) for plain in tasks]))
"""


@pytest.fixture(scope="module")
def elsewhere(tmp_path_factory):
    """Tasks by name, each with its outcome from a fresh process: plain data goes there, outcomes come back."""
    folder = tmp_path_factory.mktemp("elsewhere")
    calls = [tiny_encoder_call(2, 5), tiny_encoder_call(4, 7)]
    names = ["TorchEager", *(["ONNXRuntime"] if importlib.util.find_spec("onnxruntime") else [])]
    tasks = {name: make_task(registry.load(name)(), folder / name, tiny_encoder(), calls) for name in names}
    tasks["wrong"] = make_task(FakeBackend("wrong", alter=add_offset), folder / "wrong")
    parts = ("backend", "module", "graph_spec", "data", "device", "build_dir")
    there, back = folder / "tasks.pickle", folder / "outcomes.pickle"
    there.write_bytes(pickle.dumps([{part: getattr(task, part) for part in parts} for task in tasks.values()]))
    command = [sys.executable, "-c", CHILD, str(there), str(back)]
    child = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)
    assert child.returncode == 0, child.stderr
    outcomes = pickle.loads(back.read_bytes())
    return {name: (task, outcome) for (name, task), outcome in zip(tasks.items(), outcomes, strict=True)}


@pytest.mark.parametrize("name", ["TorchEager", "ONNXRuntime"])
def test_a_candidate_is_evaluated_in_a_fresh_process_and_revived_here(elsewhere, name):
    if name not in elsewhere:
        pytest.skip("onnxruntime is not installed")
    task, outcome = elsewhere[name]
    assert (outcome.status, outcome.stage, outcome.key) == ("ok", "check", task.backend.key())
    assert outcome.agreement.passed
    assert outcome.agreement.calls
    artifacts = [value for value in outcome.state.values() if isinstance(value, ArtifactPath)]
    assert len(artifacts) == (1 if outcome.recovery == "artifact" else 0)
    assert all(task.build_dir in artifact.path.parents for artifact in artifacts)
    revived = registry.restore(task.module if outcome.recovery == "module" else None, outcome.state)
    revived.activate()
    assert check(revived.infer, task.references, equal_symbols=revived.equal_symbols).passed
    revived.deactivate()


def test_a_wrong_candidate_is_rejected_in_a_fresh_process_as_well(elsewhere):
    task, outcome = elsewhere["wrong"]
    assert outcome.status == "rejected"
    assert outcome.reason == evaluate_candidate(task).outcome.reason
