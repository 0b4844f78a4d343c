import copy
import pickle
from typing import Any

import pytest
import torch

from aitune.exceptions import AITuneUserInputError
from aitune.torch.module.wrapper_module import Module

X = torch.ones(2, 3)


def sequential() -> torch.nn.Sequential:
    return torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.ReLU(), torch.nn.Linear(4, 2))


def test_it_is_the_class_of_the_module_and_of_the_wrapper() -> None:
    original = sequential()
    proxy = Module(original)
    assert isinstance(proxy, torch.nn.Sequential)
    assert isinstance(proxy, torch.nn.Module)
    assert isinstance(proxy, Module)
    assert proxy.__class__ is torch.nn.Sequential
    assert repr(proxy) == repr(original)
    assert {"forward", "state_dict", "tune", "unwrap"} <= set(dir(proxy))


def test_containers_answer_with_length_items_and_iteration() -> None:
    original = sequential()
    proxy = Module(original)
    assert len(proxy) == 3
    assert proxy[0] is original[0]
    assert [*proxy] == [*original]
    assert isinstance(proxy[:2], torch.nn.Sequential)
    proxy[1] = torch.nn.Tanh()
    assert isinstance(original[1], torch.nn.Tanh)
    del proxy[2]
    assert len(original) == 2
    named = torch.nn.ModuleDict({"a": torch.nn.Linear(1, 1)})
    assert "a" in Module(named)
    assert [*Module(named)] == ["a"]


def test_attributes_are_read_written_and_deleted_on_the_module() -> None:
    original = sequential()
    proxy = Module(original)
    proxy.note = "kept"
    assert original.note == "kept"
    del proxy.note
    assert not hasattr(original, "note")
    with pytest.raises(AttributeError, match="no attribute 'missing'"):
        _ = proxy.missing
    proxy.extra = torch.nn.Linear(1, 1)
    assert "extra.weight" in original.state_dict()


def test_weights_states_and_names_are_the_modules_own() -> None:
    original = sequential()
    proxy = Module(original)
    assert list(proxy.state_dict()) == list(sequential().state_dict())
    assert [id(p) for p in proxy.parameters()] == [id(p) for p in original.parameters()]
    assert [name for name, _ in proxy.named_modules()] == ["", "0", "1", "2"]
    other = sequential()
    proxy.load_state_dict(other.state_dict())
    torch.testing.assert_close(proxy(X), other(X))


@pytest.mark.parametrize("method", ["eval", "train", "double", "float", "requires_grad_", "cpu"])
def test_methods_that_return_the_module_return_the_proxy(method: str) -> None:
    proxy = Module(sequential())
    assert getattr(proxy, method)() is proxy
    assert proxy.to(torch.float64) is proxy
    assert proxy.device == torch.device("cpu")
    assert next(proxy.parameters()).dtype is torch.float64


@pytest.mark.parametrize("copied_by", [copy.deepcopy, copy.copy])
def test_a_copy_of_the_proxy_is_a_plain_module(copied_by: Any) -> None:
    original = sequential()
    proxy = Module(original)
    expected = proxy(X)
    copied = copied_by(proxy)
    assert type(copied) is torch.nn.Sequential
    assert "forward" not in copied.__dict__
    torch.testing.assert_close(copied(X), expected)
    assert (copied[0].weight is original[0].weight) == (copied_by is copy.copy)


class Holder(torch.nn.Module):
    def __init__(self, child: torch.nn.Module) -> None:
        super().__init__()
        self.child = child

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.child(x)


def test_a_parent_that_holds_the_proxy_works_as_with_the_module() -> None:
    child = sequential()
    parent, plain = Holder(Module(child)), Holder(child)
    assert list(parent.state_dict()) == list(plain.state_dict())
    assert [name for name, _ in parent.named_parameters()] == [name for name, _ in plain.named_parameters()]
    parent.double()
    assert child[0].weight.dtype is torch.float64
    parent.eval()
    assert not child.training
    seen = []
    parent.apply(lambda part: seen.append(type(part).__name__))
    assert seen.count("Linear") == 2
    copied = copy.deepcopy(parent)
    assert type(copied.child) is torch.nn.Sequential
    assert copied.child[0].weight is not child[0].weight


def test_pickling_is_refused_with_advice_also_inside_a_parent() -> None:
    proxy = Module(sequential())
    for outer in (proxy, Holder(proxy)):
        with pytest.raises(AITuneUserInputError, match=r"ait\.save\(module, path\)"):
            pickle.dumps(outer)
    assert list(pickle.loads(pickle.dumps(proxy.state_dict()))) == list(proxy.state_dict())


def test_functional_call_through_the_proxy_uses_the_weights_that_are_given() -> None:
    original = sequential()
    proxy = Module(original)
    zeros = {name: torch.zeros_like(value) for name, value in original.state_dict().items()}
    assert torch.equal(torch.func.functional_call(proxy, zeros, (X,)), torch.zeros(2, 2))
    assert proxy(X).any()


def test_the_wrappers_own_names_win_over_the_modules() -> None:
    class Named(torch.nn.Linear):
        name = "theirs"

    proxy = Module(Named(1, 1), "ours")
    assert proxy.name == "ours"
    assert proxy.original.name == "theirs"


def test_two_proxies_of_one_class_do_not_share_state() -> None:
    first, second = Module(sequential(), "a"), Module(sequential(), "b")
    assert (first.name, second.name) == ("a", "b")
    assert first.original is not second.original


def test_what_looks_past_the_proxy_sees_the_module() -> None:
    original = sequential()
    proxy = Module(original)
    assert object.__getattribute__(proxy, "__dict__") is original.__dict__
    assert vars(proxy) is original.__dict__
    before = set(original.__dict__)
    proxy.enable_recording()
    proxy.enable_passthrough()
    assert set(original.__dict__) == before
