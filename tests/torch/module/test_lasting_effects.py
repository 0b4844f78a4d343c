"""What a forward leaves behind in attributes is found, and keeps the graph on the original module."""

import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from serving_fakes import FakeTuner, call, record, served

from aitune.torch.backend.onnx_runtime_backend import ONNXRuntimeBackend
from aitune.torch.backend.torch_eager import TorchEagerBackend, TorchEagerBackendConfig
from aitune.torch.module.changed_arguments import as_function
from aitune.torch.module.lasting_effects import find_lasting_effect
from aitune.torch.module.wrapper_module import Module
from aitune.torch.tune_strategy.candidate import CandidateTask, why_unavailable

CALLS = [call(torch.randn(size, 3)) for size in (1, 4)]


class Part(torch.nn.Module):
    """Does something beside answering."""

    def __init__(self, effect: Callable[[Any, torch.Tensor], None]) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(3, 3)
        self.calls = 0
        self.log: list[Any] = []
        self.table: dict[str, Any] = {"seen": (0,)}
        self.state = SimpleNamespace(count=0)
        self.lock = threading.Lock()
        self.register_buffer("position", torch.zeros(1))
        self.effect = effect

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.linear(x)
        self.effect(self, y)
        return y


class Whole(torch.nn.Module):
    def __init__(self, effect: Callable[[Any, torch.Tensor], None]) -> None:
        super().__init__()
        self.part = Part(effect)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.part(x) * 2


def keeps_the_last(part: Any, y: torch.Tensor) -> None:
    part.last = y


def counts(part: Any, y: torch.Tensor) -> None:
    part.calls += 1


def logs(part: Any, y: torch.Tensor) -> None:
    part.log.append(y.shape)


def counts_in_a_dict(part: Any, y: torch.Tensor) -> None:
    part.table["seen"] = (part.table["seen"][0] + 1,)


def counts_in_an_object(part: Any, y: torch.Tensor) -> None:
    part.state.count += 1


def writes_in_place(part: Any, y: torch.Tensor) -> None:
    if not hasattr(part, "kept"):
        part.kept = torch.zeros(3)
    part.kept.copy_(y[0])


LASTING = {
    keeps_the_last: "part.last", counts: "part.calls", logs: "part.log[3]", counts_in_a_dict: "part.table['seen'][0]",
    counts_in_an_object: "part.state.count", writes_in_place: "part.kept",
}  # fmt: skip


def nothing(part: Any, y: torch.Tensor) -> None:
    pass


def makes_a_table_once(part: Any, y: torch.Tensor) -> None:
    if not hasattr(part, "positions"):
        part.positions = torch.arange(3)


def makes_the_same_again(part: Any, y: torch.Tensor) -> None:
    part.scale = part.linear.weight.abs().max(dim=1).values
    part.sizes = [y.shape[0], (float("nan"), 3000 + y.shape[1])]


def changes_a_buffer(part: Any, y: torch.Tensor) -> None:
    part.position.add_(1)


def found(module: torch.nn.Module, *calls: Any) -> str | None:
    (graph,) = record(module.eval(), *calls).recorded_graphs()
    return find_lasting_effect(module, graph.spec, list(graph.samples))


@pytest.mark.parametrize("effect", LASTING, ids=lambda effect: effect.__name__)
def test_what_is_left_behind_is_named_and_undone(effect: Callable[[Any, torch.Tensor], None]) -> None:
    module = Whole(effect)
    reason = found(module, *CALLS)
    assert f"in the attribute {LASTING[effect]} at every call" in str(reason)
    (graph,) = Module(module).recorded_graphs()
    before = (module.part.calls, len(module.part.log), dict(module.part.table))
    find_lasting_effect(module, graph.spec, list(graph.samples))
    assert (module.part.calls, len(module.part.log), dict(module.part.table)) == before


@pytest.mark.parametrize("effect", [nothing, makes_a_table_once, makes_the_same_again, changes_a_buffer])
def test_what_is_the_same_after_every_call_is_no_effect(effect: Callable[[Any, torch.Tensor], None]) -> None:
    assert found(Whole(effect), *CALLS) is None


def test_token_ids_stay_valid_and_what_was_seen_last_is_found() -> None:
    class Tokens(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = torch.nn.Embedding(7, 2)

        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            self.last = self.embed(ids)
            return self.last

    assert "attribute last" in str(found(Tokens(), call(torch.tensor([[1, 6]])), call(torch.tensor([[0, 6], [1, 2]]))))


def test_a_module_that_refuses_made_up_values_is_called_again_with_the_recorded_ones() -> None:
    class Picky(torch.nn.Module):
        calls = 0

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if x.max() < 1:
                raise ValueError("expected a one")
            self.calls += 1
            return x * 2

    assert "attribute calls" in str(found(Picky(), call(torch.ones(1, 2)), call(torch.ones(2, 2))))


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2, torch.uint16, torch.bool])
def test_the_arithmetic_of_the_dtype_does_not_matter(dtype: torch.dtype) -> None:
    class Counts(torch.nn.Module):
        calls = 0

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.calls += 1
            return x.float()

    calls = [call(torch.ones(size, 2).to(dtype)) for size in (1, 4)]
    assert "attribute calls" in str(found(Counts(), *calls))


def test_a_module_that_fails_is_for_others_to_report() -> None:
    module = Whole(nothing)
    wrapped = record(module.eval(), *CALLS)
    (graph,) = wrapped.recorded_graphs()
    module.part.effect = lambda part, y: part.missing
    assert find_lasting_effect(module, graph.spec, list(graph.samples)) is None
    assert find_lasting_effect(module, graph.spec, []) is None


def test_recorded_calls_are_left_as_they_are() -> None:
    class InPlace(torch.nn.Module):
        def forward(self, x: torch.Tensor, kept: list[torch.Tensor]) -> torch.Tensor:
            kept.append(x.add_(1))
            self.last = kept[-1] * 2
            return self.last

    (graph,) = record(InPlace(), call(torch.ones(2), [])).recorded_graphs()
    samples = list(graph.samples)
    reason = find_lasting_effect(as_function(InPlace(), graph.spec), graph.spec, samples)
    assert "attribute last" in str(reason)
    assert samples[0].args[0].tolist() == [1, 1]
    assert samples[0].args[1] == []


class Careless(TorchEagerBackend):
    """Says itself what it can run, without asking its base."""

    def can_run(self, *_: Any) -> None:
        """Everything."""


def test_only_the_original_may_run_such_a_graph(tmp_path: Path) -> None:
    module = Whole(keeps_the_last).eval()
    wrapped = record(module, *CALLS)
    wrapped.tune(strategy=FakeTuner(runs_original=True, follows_weights=True))
    (spec,) = wrapped.graph_specs
    laid_out = TorchEagerBackend(TorchEagerBackendConfig(channels_last=True))
    careless = Careless()
    careless.runs_original = False
    reasons = [
        why_unavailable(CandidateTask(backend, module, spec, CALLS, torch.device("cpu"), tmp_path))
        for backend in (ONNXRuntimeBackend(), laid_out, careless, TorchEagerBackend())
    ]
    assert all("attribute part.last" in str(reason) for reason in reasons[:3])
    assert reasons[3] is None
    x = torch.randn(2, 3)
    answer = wrapped(x)
    assert torch.equal(module.part.last * 2, answer)
    assert served(wrapped) == 1
