from typing import Any

import pytest
import torch
from serving_fakes import FakeServable, FlatServable, Net, call, served, tuned

from aitune.exceptions import AITuneUserInputError
from aitune.torch.config import config

CALLS = [call(torch.randn(b, 3)) for b in (1, 4)]
MASKED = [call(torch.randn(b, 3), torch.ones(b)) for b in (1, 4)]
X = torch.randn(2, 3)


@pytest.mark.parametrize("kind", [FakeServable, FlatServable])
def test_calls_inside_the_range_are_served_and_others_run_on_the_original(kind: type[FakeServable]) -> None:
    net = Net().eval()
    calls = [(X,), (torch.randn(4, 3),), (torch.randn(5, 3),), (X, torch.rand(2)), (X.double().float(),)]
    expected = [net(*args) for args in calls]
    wrapped = tuned(net, *CALLS, kind=kind)
    for args, answer in zip(calls, expected, strict=True):
        assert torch.equal(wrapped(*args), answer)
    assert wrapped.stats().served == {"graph0": 3}
    assert wrapped.stats().fallbacks == {"outside the tuned graphs": 2}
    assert wrapped.stats().share_served == 0.6


def test_positional_keyword_and_mixed_calls_are_served_alike() -> None:
    wrapped = tuned(Net(), *MASKED)
    mask = torch.rand(2)
    answers = [wrapped(X, mask), wrapped(X, mask=mask), wrapped(mask=mask, x=X)]
    assert served(wrapped) == 3
    assert all(torch.equal(answer, answers[0]) for answer in answers)
    wrapped(X, mask, scale=1.0)
    assert served(wrapped) == 3


def test_a_cause_is_said_once_and_names_what_is_outside(caplog: pytest.LogCaptureFixture) -> None:
    wrapped = tuned(Net(), *CALLS)
    for _ in range(3):
        wrapped(torch.randn(9, 3))
        wrapped.train()(X)
        wrapped.eval()
    said = [record.message for record in caplog.records]
    assert len(said) == 2
    assert "axis 0 of x: float32[9, 3] is outside the tuned range batch0 = 1..4" in said[0]
    assert "called in training mode" in said[1]


def test_an_unknown_input_may_be_an_error() -> None:
    with config.override(on_unknown_input="error"):
        wrapped = tuned(Net(), *CALLS)
    with pytest.raises(AITuneUserInputError, match="outside the tuned range"):
        wrapped(torch.randn(9, 3))
    assert wrapped(X).shape == (2, 2)
    assert wrapped.train()(X).shape == (2, 2)


def test_a_backend_that_fails_costs_nothing_but_time(caplog: pytest.LogCaptureFixture) -> None:
    def broken(*args: Any, **kwargs: Any) -> Any:
        raise RuntimeError("broken on purpose")

    net = Net().eval()
    expected = net(X)
    wrapped = tuned(net, *CALLS, answer=broken)
    for _ in range(2):
        assert torch.equal(wrapped(X), expected)
    assert wrapped.stats().fallbacks == {"error": 2}
    assert [record.message for record in caplog.records] == [
        "Fake failed while it served; the original module answers such calls"
    ]
    assert "broken on purpose" in caplog.text


def test_ctrl_c_in_a_backend_goes_through() -> None:
    def interrupted(*args: Any, **kwargs: Any) -> Any:
        raise KeyboardInterrupt

    wrapped = tuned(Net(), *CALLS, answer=interrupted)
    with pytest.raises(KeyboardInterrupt):
        wrapped(X)


def test_a_choice_of_the_original_runs_it_and_keeps_gradients() -> None:
    wrapped = tuned(Net(), *MASKED, runs_original=True)
    answer = wrapped(X.requires_grad_(), mask=torch.ones(2))
    answer.sum().backward()
    assert served(wrapped) == 1
    X.requires_grad_(False)


# -- weights and hooks -----------------------------------------------------------------------------------------------


def test_changed_weights_are_never_served_stale(caplog: pytest.LogCaptureFixture) -> None:
    net = Net().eval()
    wrapped = tuned(net, *CALLS)
    with torch.no_grad():
        net.linear.weight.add_(1)
    assert torch.equal(wrapped(X), net.linear(X))
    assert wrapped.stats().fallbacks == {"weights changed": 1}
    assert "linear.weight is no longer what it was tuned with; put it back, or tune again (retune=True)" in caplog.text


def test_the_same_weights_loaded_again_are_accepted_by_a_refresh() -> None:
    net = Net().eval()
    wrapped = tuned(net, *CALLS)
    net.load_state_dict({name: value.clone() for name, value in net.state_dict().items()})
    wrapped(X)
    assert served(wrapped) == 0
    assert wrapped.refresh() is None
    wrapped(X)
    assert served(wrapped) == 1


def test_writes_through_data_are_found_after_the_interval_and_by_a_refresh_at_once() -> None:
    with config.override(weight_check_interval=0.0):
        wrapped = tuned(Net(), *CALLS)
    wrapped.linear.weight.data.mul_(2)
    wrapped(X)
    assert torch.equal(wrapped(X), wrapped.linear(X))
    with config.override(weight_check_interval=3600.0):
        later = tuned(Net(), *CALLS)
    later.linear.weight.data.mul_(2)
    later(X)
    assert served(later) == 1
    assert later.refresh() == "linear.weight"
    assert torch.equal(later(X), later.linear(X))


def test_a_backend_that_follows_the_weights_goes_on() -> None:
    wrapped = tuned(Net(), *CALLS, follows_weights=True)
    with torch.no_grad():
        wrapped.linear.weight.add_(1)
    assert torch.equal(wrapped(X), wrapped.linear(X))
    assert served(wrapped) == 1


def test_functional_call_uses_the_weights_that_are_given() -> None:
    wrapped = tuned(Net(), *CALLS)
    zeros = {name: torch.zeros_like(value) for name, value in wrapped.state_dict().items()}
    assert torch.equal(torch.func.functional_call(wrapped.original, zeros, (X,)), torch.zeros(2, 2))
    assert not torch.equal(wrapped(X), torch.zeros(2, 2))
    assert served(wrapped) == 1


def test_a_hook_added_to_a_submodule_later_runs() -> None:
    wrapped = tuned(Net(), *CALLS)
    seen: list[int] = []
    handle = wrapped.linear.register_forward_hook(lambda *_: seen.append(1))
    wrapped(X)
    assert seen == [1]
    assert wrapped.stats().fallbacks == {"hooks on submodules": 1}
    handle.remove()
    wrapped(X)
    assert (seen, served(wrapped)) == ([1], 1)


REGISTER = {
    "forward": torch.nn.modules.module.register_module_forward_hook,
    "before": torch.nn.modules.module.register_module_forward_pre_hook,
}


@pytest.mark.parametrize("kind", REGISTER)
def test_a_hook_of_every_module_runs_for_every_submodule(kind: str, caplog: pytest.LogCaptureFixture) -> None:
    net = Net().eval()
    wrapped = tuned(net, *CALLS)
    seen: list[torch.nn.Module] = []
    handle = REGISTER[kind](lambda module, *_: seen.append(module))
    try:
        wrapped(X)
    finally:
        handle.remove()
    assert sorted(map(id, seen)) == sorted(map(id, (net, net.linear)))
    assert wrapped.stats().fallbacks == {"hooks on submodules": 1}
    assert "every module has a forward hook that it had not when it was tuned" in caplog.text
    wrapped(X)
    assert served(wrapped) == 1


def test_layers_in_a_plain_list_are_watched() -> None:
    class Hiding(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = [torch.nn.Linear(3, 2)]

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.layers[0](x)

    hiding = Hiding().eval()
    wrapped = tuned(hiding, *CALLS)
    wrapped(X)
    assert served(wrapped) == 1
    with torch.no_grad():
        hiding.layers[0].weight.add_(1)
    assert torch.equal(wrapped(X), hiding.layers[0](X))
    assert wrapped.stats().fallbacks == {"weights changed": 1}
    hooked = tuned(Hiding(), *CALLS)
    seen: list[int] = []
    hooked.original.layers[0].register_forward_hook(lambda *_: seen.append(1))
    hooked(X)
    assert (seen, hooked.stats().fallbacks) == ([1], {"hooks on submodules": 1})
