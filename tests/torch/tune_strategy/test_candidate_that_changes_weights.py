import copy
import logging
from collections.abc import Callable
from typing import Any

import pytest
import torch
from strategy_parts import CPU

import aitune.torch as ait
from aitune.testing.fakes import FakeBackend
from aitune.testing.graphs import call, record_graph
from aitune.torch.task.reference import make_references
from aitune.torch.tune_strategy.candidate import CandidateTask, EvaluatedCandidate, evaluate_candidate


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(8, 8)
        self.tied = torch.nn.Linear(8, 8)
        self.tied.weight = self.linear.weight
        self.plain = [torch.nn.Linear(8, 8)]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.tied(self.linear(x)) + self.plain[0](x)


class Meddler(FakeBackend):
    """Does something to the module at one stage."""

    def __init__(self, act: Callable[[Any], None], stage: str = "build") -> None:
        super().__init__("meddler")
        self._act, self._stage, self._acted = act, stage, False

    def _do(self, module: Any, stage: str) -> None:
        if stage == self._stage and not self._acted:
            self._acted = True
            self._act(module)

    def _build(self, module: Any, *args: Any) -> Any:
        self._do(module, "build")
        return super()._build(module, *args)

    def _activate(self) -> None:
        self._do(self._module, "activate")

    def _infer(self, *args: Any, **kwargs: Any) -> Any:
        self._do(self._module, "infer")
        return super()._infer(*args, **kwargs)


def multiply(m: Any) -> None:
    with torch.no_grad():
        m.linear.weight.mul_(1.5)


def multiply_bias(m: Any) -> None:
    m.plain[0].bias.data.mul_(1.5)


def fuse(m: Any) -> None:
    m.linear.weight.data.copy_(m.linear.weight.data * 2)
    raise RuntimeError("halfway")


LOST = [multiply, multiply_bias, fuse]


def half_and_back(m: Any) -> None:
    m.half(), m.float()


def rebind(m: Any) -> None:
    m.linear.weight.data = torch.zeros(8, 8)


def replace(m: Any) -> None:
    m.linear = torch.nn.Linear(8, 8)


def new_parameter(m: Any) -> None:
    m.linear.weight = torch.nn.Parameter(torch.zeros(8, 8))


def transpose(m: Any) -> None:
    m.linear.weight.data = m.linear.weight.data.t()


PUT_BACK = [torch.nn.Module.double, half_and_back, rebind, replace, new_parameter, transpose]
STAGES = ["build", "activate", "infer"]


def evaluate(net: Net, backend: FakeBackend, folder: Any) -> EvaluatedCandidate:
    spec, data = record_graph(net, [call(torch.ones(2, 8)), call(torch.arange(32.0).reshape(4, 8))])
    return evaluate_candidate(CandidateTask(backend, net, spec, data, CPU, folder, make_references(net, spec, data)))


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("act", LOST)
def test_what_is_written_over_puts_it_out_by_name(tmp_path: Any, act: Any, stage: str) -> None:
    evaluated = evaluate(Net().eval(), Meddler(act, stage), tmp_path)
    name = "plain[0].bias" if act is multiply_bias else "linear.weight"
    assert evaluated.outcome.status == "rejected"
    assert evaluated.outcome.reason == f"it writes over the weight {name!r} of the module"
    assert evaluated.lost_weights == (name,)
    assert evaluated.backend is None


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("act", PUT_BACK)
def test_what_still_exists_is_put_back(tmp_path: Any, act: Any, stage: str) -> None:
    net = Net().eval()
    kept, x = copy.deepcopy(net), torch.randn(3, 8)
    weight, address = net.linear.weight, net.linear.weight.data_ptr()
    evaluated = evaluate(net, Meddler(act, stage), tmp_path)
    assert torch.equal(net(x), kept(x))
    assert net.linear.weight is weight
    assert net.tied.weight is weight
    assert weight.data_ptr() == address
    assert weight.requires_grad
    assert evaluated.lost_weights == ()
    if stage != "infer":
        assert evaluated.outcome.status == "ok"
        if act not in (replace, new_parameter):
            assert any("changed the weight 'linear.weight'" in note for note in evaluated.outcome.notes)


def test_gradients_are_asked_for_as_before(tmp_path: Any) -> None:
    net = Net().eval()
    evaluated = evaluate(net, Meddler(lambda m: m.requires_grad_(False)), tmp_path)
    assert all(parameter.requires_grad for parameter in net.parameters())
    assert evaluated.outcome.status == "ok"
    assert evaluated.outcome.notes == ()


@pytest.mark.parametrize("act", LOST)
def test_the_run_goes_on_and_its_report_names_candidate_and_weight(act: Any, caplog: Any) -> None:
    model = ait.Module(Net().eval(), "net")
    strategy = ait.MaxThroughputStrategy([Meddler(act), FakeBackend("honest")])
    with caplog.at_level(logging.WARNING):
        report = ait.tune(model, [torch.randn(8) for _ in range(4)], batch_sizes=[1, 4], strategy=strategy)
    found = report.module("net")
    assert found.status == "original kept"
    (graph,) = found.graphs
    (warning,) = [warning for warning in graph.warnings if "cannot be undone" in warning]
    assert warning.startswith("Fake(meddler) writes over the weight")
    assert "load the weights of net again" in warning
    assert "cannot be undone" in caplog.text


def test_the_run_puts_back_what_it_can() -> None:
    net = Net().eval()
    kept, x = copy.deepcopy(net), torch.randn(3, 8)
    model = ait.Module(net, "net")
    strategy = ait.MaxThroughputStrategy([Meddler(torch.nn.Module.double)])
    ait.tune(model, [torch.randn(8) for _ in range(4)], batch_sizes=[1, 4], strategy=strategy)
    with torch.no_grad():
        assert torch.equal(model(x), kept(x))
