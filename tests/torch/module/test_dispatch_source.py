from typing import Any

import pytest
import torch
from serving_fakes import FakeServable, FlatServable

from aitune.torch.module.dispatch_source import (
    AUTOCAST,
    ERROR,
    FALLBACK_CAUSES,
    GRADIENTS,
    HOOKS,
    OUTSIDE,
    TRACED,
    TRAINING,
    WEIGHTS,
    write_dispatch,
)
from aitune.torch.module.forward_signature import ForwardSignature
from aitune.torch.module.graph_spec import GraphSpec
from aitune.torch.module.hook_watch import HookWatch
from aitune.torch.module.sample_metadata import SampleMetadata
from aitune.torch.module.servable import TunedGraph

X = torch.ones(2, 3)


class Model(torch.nn.Module):
    def forward(self, x, mask=None, *rest, flag=False, **more):
        return x


class Counts:
    def __init__(self) -> None:
        self.values = [0] * 16


class Dispatch:
    """The written function, with plain functions in the place of a tuned module."""

    def __init__(self, *calls: dict[str, Any], kind: type[FakeServable] = FakeServable, **options: Any) -> None:
        self.module = Model().eval()
        self.signature = ForwardSignature.from_callable(self.module.forward)
        graphs = []
        for named in calls:
            spec = SampleMetadata.from_inputs(named, strict=True)
            graph_spec = GraphSpec("graph", spec, spec, self.signature)
            graphs.append(TunedGraph(graph_spec, kind(self.module, graph_spec, **options)))
        self.written = write_dispatch(self.signature, graphs)
        self.counts = Counts()
        self.changed: str | None = None
        self.failures: list[Exception] = []
        self.runs: list[Any] = []
        names = {
            **self.written.objects,
            "_aitune_module": self.module,
            "_aitune_counts": self.counts,
            "_aitune_weights_changed": lambda: self.changed,
            "_aitune_hooks": HookWatch(self.module),
            "_aitune_failed": lambda number, error: self.failures.append(error),
            "_aitune_fall_back": lambda cause, *given: (cause, *given),
            "_aitune_match": lambda *given: ("match", *given),
        }
        for number in range(len(calls)):
            names[f"_aitune_run{number}"] = self._runner(number)
        exec(self.written.text, names)
        self.function = names["forward"]

    def _runner(self, number: int) -> Any:
        def run(*args: Any, **kwargs: Any) -> Any:
            self.runs.append((args, kwargs))
            if "fail" in kwargs:
                raise RuntimeError("on purpose")
            return number

        return run

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(None, *args, **kwargs)

    def cause(self, *args: Any, **kwargs: Any) -> int:
        return self(*args, **kwargs)[0]


def test_each_call_finds_its_graph_and_is_counted() -> None:
    dispatch = Dispatch({"x": X}, {"x": X, "mask": X}, {"x": X, "rest": (X,), "mask": X}, {"x": X, "flag": True})
    assert [dispatch(X), dispatch(X, X), dispatch(X, mask=X), dispatch(X, X, X), dispatch(X, flag=True)] == [
        0,
        1,
        1,
        2,
        3,
    ]
    assert dispatch.counts.values[:4] == [1, 2, 1, 1]
    assert dispatch.cause(X, flag=False) == OUTSIDE


def test_backends_get_the_canonical_call_or_the_list_of_tensors() -> None:
    named = {"x": X, "mask": None, "flag": True, "extra": X}
    dispatch = Dispatch(named)
    assert dispatch(extra=X, flag=True, mask=None, x=X) == 0
    assert dispatch.runs == [((X, None), {"flag": True, "extra": X})]
    flat = Dispatch(named, kind=FlatServable)
    flat(X, None, flag=True, extra=X)
    assert flat.runs == [(([X, X],), {})]


def test_falling_back_hands_over_the_call_as_it_was() -> None:
    dispatch = Dispatch({"x": X})
    absent = dispatch.written.objects["_aitune_absent"]
    cause, positional, extra, keyword_only, more = dispatch(X, X, 3, flag=1, other=2)
    assert (cause, positional, extra, keyword_only, more) == (OUTSIDE, (X, X), (3,), {"flag": 1}, {"other": 2})
    assert dispatch()[1] == (absent, absent)


def test_states_in_which_the_original_runs() -> None:
    dispatch = Dispatch({"x": X})
    dispatch.module.train()
    assert dispatch.cause(X) == TRAINING
    dispatch.module.eval()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert dispatch.cause(X) == AUTOCAST
    needs_grad = torch.ones(2, 3, requires_grad=True)
    assert dispatch.cause(needs_grad) == GRADIENTS
    with torch.no_grad():
        assert dispatch(needs_grad) == 0
    with torch.inference_mode():
        assert dispatch(X) == 0
    dispatch.changed = "weight"
    assert dispatch.cause(X) == WEIGHTS
    dispatch.changed = None
    dispatch.module.add_module("part", torch.nn.ReLU())
    handle = dispatch.module.part.register_forward_hook(lambda *_: None)
    assert dispatch.cause(X) == HOOKS
    handle.remove()
    assert dispatch(X) == 0


def test_a_graph_tuned_under_autocast_is_served_under_the_same_autocast_alone() -> None:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        dispatch = Dispatch({"x": X})
        assert dispatch(X) == 0
    assert dispatch.cause(X) == AUTOCAST
    with torch.autocast("cpu", dtype=torch.float16):
        assert dispatch.cause(X) == AUTOCAST


def test_autocast_of_another_device_does_not_matter() -> None:
    dispatch = Dispatch({"x": X})
    before = torch.is_autocast_enabled("cuda")
    torch.set_autocast_enabled("cuda", True)
    try:
        assert dispatch(X) == 0
    finally:
        torch.set_autocast_enabled("cuda", before)


def test_whatever_traces_or_transforms_the_call_sees_the_original() -> None:
    dispatch = Dispatch({"x": X}, {"x": X[0]})
    causes: list[Any] = []

    def observed(x: torch.Tensor) -> torch.Tensor:
        causes.append(dispatch(x))
        return x * 2

    torch.jit.trace(observed, (X,), check_trace=False)
    torch.func.vmap(observed)(X)
    torch.func.jvp(observed, (X,), (X,))
    torch.fx.experimental.proxy_tensor.make_fx(observed)(X)
    with torch.autograd.forward_ad.dual_level():
        observed(torch.autograd.forward_ad.make_dual(X, X))
    assert [cause[0] for cause in causes] == [TRACED] * 5
    assert dispatch(X) == 0


def test_a_backend_that_raises_is_noted_and_the_original_runs() -> None:
    dispatch = Dispatch({"x": X, "fail": True})
    assert dispatch.cause(X, fail=True) == ERROR
    assert [str(error) for error in dispatch.failures] == ["on purpose"]
    assert dispatch.counts.values[0] == 0


def test_what_follows_the_weights_need_not_look_at_them() -> None:
    assert "_aitune_weights_changed()" in Dispatch({"x": X}).written.text
    assert "_aitune_weights_changed()" not in Dispatch({"x": X}, follows_weights=True).written.text


def test_graphs_without_a_written_guard_are_matched_later() -> None:
    dispatch = Dispatch({"x": {1: X}}, {"x": X})
    assert dispatch.written.unwritten == (0,)
    assert dispatch(X) == 1
    assert dispatch.cause({1: X}) == "match"


def test_a_signature_that_cannot_be_written_is_still_guarded_by_state() -> None:
    signature = ForwardSignature(positional=("_aitune_x",))
    written = write_dispatch(signature, [])
    assert "*args, **kwargs" in written.text
    assert "_aitune_module.training" in written.text


def test_many_graphs_share_their_first_conditions() -> None:
    dispatch = Dispatch(*({"x": X, "mask": number} for number in range(16)))
    assert dispatch.written.text.count("x.dtype is") == 1
    assert [dispatch(X, number) for number in range(16)] == list(range(16))


@pytest.mark.parametrize("cause", range(len(FALLBACK_CAUSES)))
def test_every_cause_has_a_name(cause: int) -> None:
    assert FALLBACK_CAUSES[cause]
