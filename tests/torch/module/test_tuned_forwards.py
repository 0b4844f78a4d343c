"""Forwards of every make behind a tuned module."""

import dataclasses
import functools
from collections import OrderedDict, UserDict, deque
from typing import Any

import pytest
import torch
from serving_fakes import FakeServable, FakeTuner, FlatServable, Net, call, served, tuned

from aitune.torch.module.recording_module import recorded_batch_size
from aitune.torch.module.wrapper_module import Module

CALLS = [call(torch.randn(b, 3)) for b in (1, 4)]
MASKED = [call(torch.randn(b, 3), torch.ones(b)) for b in (1, 4)]
X = torch.randn(2, 3)


class Repeated(torch.nn.Module):
    def __init__(self, part: torch.nn.Module) -> None:
        super().__init__()
        self.part = part

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.part(x) + self.part(x.repeat(2, 1))[: x.shape[0]] + self.part(x[:, :1].expand(-1, 3))


def test_a_module_called_several_times_in_one_forward_with_different_shapes() -> None:
    net = Net().eval()
    parent = Repeated(net).eval()
    expected = parent(X)
    wrapped = Module(net)
    wrapped.enable_recording()
    with torch.no_grad():
        parent(torch.randn(1, 3))
        parent(torch.randn(4, 3))
    wrapped.tune(strategy=FakeTuner())
    assert torch.equal(parent(X), expected)
    assert served(wrapped) == 3


class Decorated(torch.nn.Module):
    """Its decorator treats arguments given by name differently, as decorators of libraries do."""

    @staticmethod
    def _looks(function: Any) -> Any:
        @functools.wraps(function)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            return function(*args, **kwargs) + (10 if "mask" in kwargs else 0)

        return wrapper

    @_looks
    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return x * mask


def test_a_decorated_forward_gets_its_arguments_as_they_were_given() -> None:
    x, mask = torch.ones(2), torch.ones(2)
    for runs_original in (True, False):
        module = Decorated().eval()
        wrapped = tuned(module, call(x, mask=mask), runs_original=runs_original)
        assert torch.equal(wrapped(x, mask=mask), torch.full((2,), 11.0))
        assert served(wrapped) == 1
        # The same graph in another style: served only where the original runs, whose answer differs.
        longer = torch.ones(3)
        assert torch.equal(wrapped(longer, longer), torch.ones(3))
        assert torch.equal(wrapped(longer, mask=longer), torch.full((3,), 11.0))


def test_a_forward_replaced_by_a_partial_is_tuned_with_it() -> None:
    net = Net().eval()
    net.forward = functools.partial(net.forward, scale=3.0)  # type: ignore[method-assign]
    expected = net(X)
    wrapped = tuned(net, *CALLS)
    assert torch.equal(wrapped(X), expected)
    assert served(wrapped) == 1
    with pytest.raises(TypeError, match=r"Net\.forward\(\) got multiple values for argument 'x'"):
        wrapped(X, x=X)
    assert torch.equal(wrapped.unwrap()(X), expected)


def test_a_random_forward_stays_random_on_the_original() -> None:
    class Noisy(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + torch.rand_like(x)

    wrapped = tuned(Noisy(), call(X), runs_original=True)
    torch.manual_seed(3)
    expected = X + torch.rand_like(X)
    torch.manual_seed(3)
    assert torch.equal(wrapped(X), expected)
    assert not torch.equal(wrapped(X), wrapped(X))


def test_a_container_without_a_written_guard_is_served_through_the_pytree() -> None:
    class Last(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = torch.nn.Linear(3, 2)

        def forward(self, queue: Any) -> torch.Tensor:
            return self.linear(queue[-1])

    wrapped = tuned(Last(), call(deque([torch.randn(1, 3)])), call(deque([torch.randn(4, 3)])))
    last = wrapped.linear
    assert torch.equal(wrapped(deque([X])), last(X))
    assert served(wrapped) == 1
    for queue in (
        deque([X, X]),
        [X],
        deque([X.double().float().repeat(3, 1)]),
        deque([torch.randn(2, 3, requires_grad=True)]),
    ):
        assert torch.equal(wrapped(queue), last(queue[-1]))
    with torch.no_grad():
        last.weight.add_(1)
    assert torch.equal(wrapped(deque([X])), last(X))
    assert wrapped.stats().fallbacks == {"outside the tuned graphs": 3, "gradients": 1, "weights changed": 1}


def test_prefill_and_decode_with_a_cache_are_two_graphs() -> None:
    transformers = pytest.importorskip("transformers")
    settings = transformers.LlamaConfig(
        hidden_size=16, intermediate_size=16, num_hidden_layers=2, num_attention_heads=2, vocab_size=32
    )
    model = transformers.LlamaForCausalLM(settings).eval()

    def generate(batch: int = 2, length: int = 3) -> list[Any]:
        prompt = torch.arange(batch * length).reshape(batch, length)
        first = model(input_ids=prompt, use_cache=True)
        second = model(
            input_ids=torch.ones(batch, 1, dtype=torch.int64), past_key_values=first.past_key_values, use_cache=True
        )
        return [first, second]

    with torch.no_grad():
        expected = generate()
        wrapped = Module(model)
        wrapped.enable_recording()
        for batch in (2, 1):
            with recorded_batch_size(batch):
                generate(batch, 2 + batch)
                generate(batch, 3 + batch)
        prefill, decode = wrapped.recorded_graphs()
        assert prefill.problem is decode.problem is None
        assert decode.spec.changed_arguments == ("past_key_values",)
        # All layers of a cache are of one length.
        assert list(decode.spec.symbols) == ["batch0", "dim0"]
        wrapped.tune(strategy=FakeTuner())
        answers = generate()
    assert wrapped.stats().served == {"graph0": 1, "graph1": 1}
    assert answers[1].past_key_values is answers[0].past_key_values
    for answer, original in zip(answers, expected, strict=True):
        assert type(answer) is type(original)
        torch.testing.assert_close(answer.logits, original.logits)
    assert answers[1].past_key_values.get_seq_length() == 4
    for answer, original in zip(answers[1].past_key_values.layers, expected[1].past_key_values.layers, strict=True):
        torch.testing.assert_close([answer.keys, answer.values], [original.keys, original.values])


@dataclasses.dataclass
class State:
    hidden: torch.Tensor


def step(linear: Any, x: torch.Tensor, kept: Any) -> torch.Tensor:
    """Puts what it computes into whatever it is given."""
    y = linear(x)
    if isinstance(kept, State):
        kept.hidden = kept.hidden + y
    elif isinstance(kept, list):
        kept.append(y)
    else:
        kept["hidden"] = kept["hidden"] + y
    return y * 2


FILLED = {
    "a dataclass": lambda: State(torch.ones(2, 3)),
    "a list": lambda: [torch.ones(2, 3)],
    "an empty list": list,
    "a dict": lambda: {"hidden": torch.ones(2, 3)},
    "an OrderedDict": lambda: OrderedDict(hidden=torch.ones(2, 3)),
    "a UserDict": lambda: UserDict(hidden=torch.ones(2, 3)),
}


class Step(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(3, 3)

    def forward(self, x: torch.Tensor, kept: Any) -> torch.Tensor:
        return step(self.linear, x, kept)


@pytest.mark.parametrize("kind", [FakeServable, FlatServable])
@pytest.mark.parametrize("name", FILLED)
def test_a_container_that_the_forward_fills_is_filled_for_the_caller(name: str, kind: type[FakeServable]) -> None:
    module, make = Step().eval().requires_grad_(False), FILLED[name]
    expected_kept = make()
    expected = module(X, expected_kept)
    wrapped = tuned(module, call(X, make()), kind=kind)
    kept = held = make()
    assert torch.equal(wrapped(X, kept=kept), expected)
    assert kept is held
    assert str(kept) == str(expected_kept)
    assert served(wrapped) == 1
    wrapped(X, kept)
    wrapped.original(X, expected_kept)
    assert str(kept) == str(expected_kept)


def test_another_cache_than_the_growing_one_is_refused_by_name() -> None:
    transformers = pytest.importorskip("transformers")
    settings = transformers.LlamaConfig(
        hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2, vocab_size=32
    )
    model = transformers.LlamaForCausalLM(settings).eval()
    wrapped = Module(model)
    wrapped.enable_recording()
    with torch.no_grad():
        model(input_ids=torch.zeros(1, 2, dtype=torch.int64), past_key_values=transformers.StaticCache(settings, 8))
    assert wrapped.recorded_graphs() == []
    assert any("past_key_values" in problem and "StaticCache" in problem for problem in wrapped.recording_problems)
