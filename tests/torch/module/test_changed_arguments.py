import dataclasses
from collections import OrderedDict, UserDict
from typing import Any

import pytest
import torch
from serving_fakes import FakeServable, FakeTuner, call, record, served, tuned

from aitune.torch.module.changed_arguments import (
    ReturningArguments,
    as_function,
    can_be_put_back,
    changed_arguments,
    contents_of,
    put_back,
    with_arguments,
)
from aitune.torch.module.containers import register_containers
from aitune.torch.module.wrapper_module import Module

X = torch.randn(2, 3)


class Filling(torch.nn.Module):
    """Adds its answer to the list that it is given, and returns the list as well."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(3, 3)

    def forward(self, x: torch.Tensor, kept: list[torch.Tensor], *, more: Any = None) -> dict[str, Any]:
        kept.append(self.linear(x))
        return {"y": kept[-1] * 2, "kept": kept}


@dataclasses.dataclass
class Held:
    value: Any


@dataclasses.dataclass(frozen=True, slots=True)
class Slotted:
    value: Any


@dataclasses.dataclass
class HeldTwice(OrderedDict[str, Any]):
    """As the outputs of transformers are."""

    value: Any = None


@pytest.mark.parametrize(
    ("value", "possible"),
    [
        ([], True), ({}, True), (OrderedDict(), True), (UserDict(), True), (Held(1), True),
        (Slotted(1), True), (HeldTwice(1), False),
        ((), False), (torch.zeros(1), False), (Held, False), (object(), False), (torch.Size([1]), False),
    ],
)  # fmt: skip
def test_what_can_be_given_other_contents(value: Any, possible: bool) -> None:
    assert can_be_put_back(value) == possible


class Renaming(torch.nn.Module):
    """Puts what it is given under another name: the same objects, elsewhere."""

    def forward(self, x: torch.Tensor, kept: dict[str, torch.Tensor]) -> torch.Tensor:
        kept["new"] = kept.pop("old")
        return x * 2


def test_the_same_objects_elsewhere_are_a_change() -> None:
    wrapped = tuned(Renaming().eval(), call(X, {"old": X}), call(X[:1], {"old": X[:1]}))
    assert wrapped.graph_specs[0].changed_arguments == ("kept",)
    kept = {"old": X}
    wrapped(X, kept)
    assert served(wrapped) == 1
    assert list(kept) == ["new"]


def test_arguments_that_hold_other_objects_are_named() -> None:
    named: dict[str, Any] = {"a": [X], "b": {"k": X}, "c": X, "d": []}
    before = contents_of(named)
    assert changed_arguments(before, named) == ()
    named["a"][0] = X.clone()
    named["d"].append(X)
    X.add_(0)
    assert changed_arguments(before, named) == ("a", "d")


@pytest.mark.parametrize(
    ("target", "contents"),
    [
        ([1], [2, 3]), ({"a": 1}, {"b": 2, "a": 3}), (OrderedDict(a=1), OrderedDict(b=2)),
        (UserDict(a=1), UserDict(b=2)), (Held(1), Held([2])),
        (Slotted(1), Slotted([2])),
    ],
)  # fmt: skip
def test_the_callers_own_object_gets_the_contents(target: Any, contents: Any) -> None:
    register_containers([target, contents])
    held = target
    output = put_back(with_arguments({"y": 5, "same": contents}, {"kept": contents}), {"kept": target})
    assert output["same"] is held
    assert output["y"] == 5
    assert str(held) == str(contents)


def test_a_module_as_a_function_leaves_its_arguments_alone() -> None:
    module = Filling().eval()
    (graph,) = record(module, call(X, [])).recorded_graphs()
    assert graph.spec.changed_arguments == ("kept",)
    function = as_function(module, graph.spec)
    assert isinstance(function, ReturningArguments)
    for args, kwargs in (((X, []), {}), ((X,), {"kept": []}), ((), {"x": X, "kept": []})):
        value = function(*args, **kwargs)
        assert (args[1] if len(args) > 1 else kwargs["kept"]) == []
        assert torch.equal(value["arguments"]["kept"][0], module.linear(X))
        assert isinstance(value["output"]["kept"], str)
    plain = torch.nn.Linear(3, 3)
    (graph,) = record(plain, call(X)).recorded_graphs()
    assert as_function(plain, graph.spec) is plain


def test_an_argument_that_is_returned_is_the_callers_own() -> None:
    wrapped = tuned(Filling(), call(X, []))
    kept: list[torch.Tensor] = []
    output = wrapped(X, kept)
    assert output["kept"] is kept
    assert torch.equal(kept[0] * 2, output["y"])
    assert served(wrapped) == 1


def test_one_object_for_two_arguments_is_left_to_the_original() -> None:
    class Both(torch.nn.Module):
        def forward(self, x: torch.Tensor, a: list[torch.Tensor], b: list[torch.Tensor]) -> torch.Tensor:
            a.append(x)
            b.append(x * 2)
            return x + 1

    wrapped = tuned(Both(), call(X, [], []))
    one: list[torch.Tensor] = []
    other: list[torch.Tensor] = []
    wrapped(X, one, other)
    assert (len(one), len(other), served(wrapped)) == (1, 1, 1)
    both: list[torch.Tensor] = []
    wrapped(X, both, both)
    assert (len(both), served(wrapped)) == (2, 1)


def test_a_backend_that_fails_leaves_the_arguments_to_the_original() -> None:
    def broken(*args: Any, **kwargs: Any) -> Any:
        raise RuntimeError("broken on purpose")

    wrapped = tuned(Filling(), call(X, []), answer=broken)
    kept: list[torch.Tensor] = []
    wrapped(X, kept)
    assert len(kept) == 1
    assert wrapped.stats().fallbacks == {"error": 1}


def test_such_a_graph_can_be_stored() -> None:
    module = Filling().eval()
    wrapped = record(module, call(X, []))
    wrapped.tune(strategy=FakeTuner())
    state = wrapped.to_dict()
    spec = wrapped.graph_specs[0]
    wrapped.unwrap()

    def restore(view: torch.nn.Module, entry: dict[str, Any]) -> Any:
        return FakeServable(view, spec)

    loaded = Module.from_dict(module, state, restore=restore)
    kept: list[torch.Tensor] = []
    assert loaded(X, kept)["kept"] is kept
    assert (len(kept), served(loaded)) == (1, 1)
