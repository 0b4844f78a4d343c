"""Calls that rejected candidates got wrong, kept for later questions."""

import pytest
import torch
from torch import nn

from aitune.testing.graphs import call, record_graph
from aitune.torch.task.correctness import check
from aitune.torch.task.outcome import CandidateOutcome
from aitune.torch.task.reference import make_references
from aitune.torch.tune_strategy import disagreements as module_under_test
from aitune.torch.tune_strategy.disagreements import Disagreements


@pytest.fixture(scope="module")
def references():
    module = nn.ReLU()
    graph_spec, data = record_graph(module, [call(torch.randn(size, 3)) for size in (1, 4)])
    return make_references(module, graph_spec, data)


def outcome_of(infer, references, key="candidate"):
    agreement = check(infer, references)
    status = "ok" if agreement.passed else "rejected"
    return CandidateOutcome("Fake", key, key, status, "check", agreement=agreement)


def test_the_call_of_a_rejection_comes_back_as_a_copy(references):
    kept, outcome = Disagreements(), outcome_of(lambda x: x.abs(), references)
    kept.keep("m", "graph0", outcome, references)
    found = kept.find("m", "graph0", outcome)
    (expected,) = [made.call for made in references.calls if made.where == outcome.agreement.rejection.where]
    assert torch.equal(found.args[0], expected.args[0])
    found.args[0].zero_()
    assert torch.equal(kept.find("m", "graph0", outcome).args[0], expected.args[0])


def test_another_place_or_another_rejection_finds_nothing(references):
    kept, outcome = Disagreements(), outcome_of(lambda x: x.abs(), references)
    kept.keep("m", "graph0", outcome, references)
    assert kept.find("other", "graph0", outcome) is None
    assert kept.find("m", "graph1", outcome) is None
    assert kept.find("m", "graph0", outcome_of(lambda x: x + 1, references)) is None


@pytest.mark.parametrize("infer", [torch.relu, lambda x: x.relu().double()], ids=["agrees", "another dtype"])
def test_nothing_is_kept_where_no_value_differs(references, infer):
    kept, outcome = Disagreements(), outcome_of(infer, references)
    kept.keep("m", "graph0", outcome, references)
    assert kept.find("m", "graph0", outcome) is None


def test_few_and_small_calls_are_kept(references, monkeypatch):
    kept = Disagreements()
    outcomes = [outcome_of(lambda x: x.abs(), references, f"key {number}") for number in range(3)]
    monkeypatch.setattr(module_under_test, "_MOST_CALLS", 2)
    for outcome in outcomes:
        kept.keep("m", "graph0", outcome, references)
    assert [kept.find("m", "graph0", outcome) is not None for outcome in outcomes] == [False, True, True]
    monkeypatch.setattr(module_under_test, "_MOST_BYTES", 1)
    kept.keep("m", "graph0", outcomes[0], references)
    assert kept.find("m", "graph0", outcomes[0]) is None
