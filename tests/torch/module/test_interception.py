import copy
import functools
import io
import pickle
from typing import Any

import pytest
import torch

from aitune.exceptions import AITuneUserInputError
from aitune.torch.module.interception import InterceptedForward, Interception


class Scaled(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(3, 2)
        self.scale = 2.0

    def forward(self, x: torch.Tensor, shift: float = 0.0) -> torch.Tensor:
        return self.linear(x) * self.scale + shift


class Parent(torch.nn.Module):
    def __init__(self, child: torch.nn.Module) -> None:
        super().__init__()
        self.child = child
        self.same_child = child

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.child(x) + self.same_child(x)


class Answering(InterceptedForward):
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return "answered"


X = torch.ones(1, 3)


def redirected(module: torch.nn.Module) -> Interception:
    interception = Interception(module)
    interception.redirect(Answering(interception))
    return interception


def by_pickle(module: torch.nn.Module) -> torch.nn.Module:
    stream = io.BytesIO()
    torch.save(module, stream)
    stream.seek(0)
    return torch.load(stream, weights_only=False)


COPIES = [copy.deepcopy, lambda module: pickle.loads(pickle.dumps(module)), by_pickle]


def test_calls_are_redirected_wherever_the_module_is_held_and_passed_through_again() -> None:
    module = Scaled()
    parent = torch.nn.Sequential(module)
    expected = module(X)
    interception = redirected(module)
    assert module(X) == parent(X) == module.forward(X) == "answered"
    interception.pass_through()
    torch.testing.assert_close(parent(X), expected, rtol=0, atol=0)


def test_nothing_is_left_after_removal_and_nothing_shows_in_the_state_dict() -> None:
    module = Scaled()
    before, keys = dict(module.__dict__), list(module.state_dict())
    interception = redirected(module)
    assert list(module.state_dict()) == keys
    interception.remove()
    assert module.__dict__ == before


def test_what_somebody_else_put_in_its_place_stays() -> None:
    module = Scaled()
    interception = redirected(module)
    module.forward = lambda x: "theirs"  # type: ignore[method-assign,assignment]
    interception.remove()
    assert module(X) == "theirs"
    assert "__getstate__" not in module.__dict__


@pytest.mark.parametrize("copied_by", COPIES, ids=["deepcopy", "pickle", "torch.save"])
@pytest.mark.parametrize("inside", [False, True], ids=["itself", "its parent"])
def test_a_copy_is_plain_and_has_its_own_weights(copied_by: Any, inside: bool) -> None:
    module = Scaled()
    outer: torch.nn.Module = Parent(module) if inside else module
    expected = outer(X)
    redirected(module)
    copied = copied_by(outer)
    torch.testing.assert_close(copied(X), expected, rtol=0, atol=0)
    inner = copied.child if inside else copied
    assert {"forward", "__getstate__", "_replicate_for_data_parallel"}.isdisjoint(inner.__dict__)
    with torch.no_grad():
        inner.linear.weight.zero_()
        inner.linear.bias.zero_()
    assert torch.equal(copied(X), torch.zeros(1, 2))
    assert module.linear.weight.any()
    assert module(X) == "answered"


def test_a_shallow_copy_is_plain_and_shares_the_weights() -> None:
    module = Scaled()
    redirected(module)
    copied = copy.copy(module)
    assert copied.linear is module.linear
    assert isinstance(copied(X), torch.Tensor)


def test_a_forward_that_was_replaced_before_is_kept_in_copies_and_put_back() -> None:
    module = Scaled()
    module.forward = functools.partial(module.forward, shift=5.0)  # type: ignore[method-assign]
    expected = module(X)
    interception = redirected(module)
    copied = copy.deepcopy(module)
    torch.testing.assert_close(copied(X), expected, rtol=0, atol=0)
    with torch.no_grad():
        module.linear.weight.zero_()
    torch.testing.assert_close(copied(X), expected, rtol=0, atol=0)
    interception.remove()
    assert isinstance(module.forward, functools.partial)


def test_a_module_that_copies_its_attributes_itself_gets_a_plain_copy() -> None:
    traced = torch.fx.symbolic_trace(torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.ReLU()))
    expected = traced(X)
    redirected(traced)
    copied = copy.deepcopy(traced)
    torch.testing.assert_close(copied(X), expected, rtol=0, atol=0)
    assert traced(X) == "answered"
    with torch.no_grad():
        traced.get_submodule("0").weight.zero_()
    torch.testing.assert_close(copied(X), expected, rtol=0, atol=0)
    with pytest.raises(AITuneUserInputError, match=r"ait\.save"):
        pickle.dumps(traced)


class OwnState(Scaled):
    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "marked": True}


def test_a_state_of_the_class_itself_is_respected() -> None:
    module = OwnState()
    redirected(module)
    copied = pickle.loads(pickle.dumps(module))
    assert copied.marked
    assert isinstance(copied(X), torch.Tensor)


def test_replicas_are_refused_with_advice() -> None:
    module = Scaled()
    redirected(module)
    with pytest.raises(AITuneUserInputError, match="unwrap"):
        module._replicate_for_data_parallel()


def test_a_plain_view_shares_everything_but_hooks_and_forward() -> None:
    module = Scaled()
    calls = []
    module.register_forward_hook(lambda *_: calls.append(1))
    interception = redirected(module)
    view = interception.plain_view()
    assert isinstance(view(X), torch.Tensor)
    assert not calls
    assert type(view) is Scaled
    assert view.linear is module.linear
    module(X)
    assert calls == [1]


@pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")
def test_scripting_is_refused_with_advice() -> None:
    module = Scaled()
    redirected(module)
    with pytest.raises(AttributeError, match=r"unwrap it before torch\.jit\.script"):
        torch.jit.script(torch.nn.Sequential(module))
