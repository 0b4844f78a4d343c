import functools
import logging
import random
import sys
import threading
from collections import deque
from typing import Any

import pytest
import torch
from serving_fakes import FakeServable, FakeTuner, FlatServable, call, served, tuned

from aitune.exceptions import AITuneUserInputError
from aitune.torch.config import config
from aitune.torch.module.wrapper_module import Module


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(3, 2)

    def forward(self, x: torch.Tensor, mask: torch.Tensor | None = None, *, scale: float = 1.0) -> torch.Tensor:
        y = self.linear(x) * scale
        return y if mask is None else y * mask[:, None]


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
    assert "linear.weight is no longer the weight it was tuned with; tune again (retune=True)" in caplog.text


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


# -- states of torch -------------------------------------------------------------------------------------------------


def test_outputs_can_be_used_as_the_originals_in_every_mode() -> None:
    net = Net().eval().requires_grad_(False)
    wrapped = tuned(net, *CALLS)
    for mode in (torch.no_grad, torch.enable_grad, torch.inference_mode):
        with mode():
            output = wrapped(X)
            assert output.is_inference() == torch.is_inference_mode_enabled()
            assert not output.requires_grad
            output.add_(1)
    assert served(wrapped) == 3
    with torch.inference_mode():
        inside = torch.randn(2, 3)
        assert torch.equal(wrapped(inside), net.linear(inside))


def test_gradients_reach_an_input_that_wants_them() -> None:
    wrapped = tuned(Net(), *CALLS)
    x = torch.randn(2, 3, requires_grad=True)
    wrapped(x).sum().backward()
    assert x.grad is not None
    assert wrapped.stats().fallbacks == {"gradients": 1}


def test_autocast_runs_on_the_original() -> None:
    wrapped = tuned(Net(), *CALLS)
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        assert wrapped(X).dtype is torch.bfloat16
    assert wrapped.stats().fallbacks == {"autocast": 1}


def test_transforms_of_functions_are_right() -> None:
    net = Net().eval()
    expected = torch.func.vmap(net)(X[:, None])
    jacobian = torch.func.jacrev(net)(X)
    wrapped = tuned(net, call(torch.randn(1, 3)), call(torch.randn(4, 3)))
    torch.testing.assert_close(torch.func.vmap(wrapped)(X[:, None]), expected)
    torch.testing.assert_close(torch.func.jacrev(wrapped)(X), jacobian)
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(X, torch.ones(2, 3))
        assert torch.autograd.forward_ad.unpack_dual(wrapped(dual)).tangent is not None


class Pipeline(torch.nn.Module):
    def __init__(self, inner: torch.nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x) + self.inner(x + 1)


@pytest.mark.parametrize("held", ["original", "proxy"])
@pytest.mark.parametrize("fullgraph", [False, True])
def test_a_compiled_parent_compiles_the_original(held: str, fullgraph: bool) -> None:
    torch._dynamo.reset()
    net = Net().eval()
    expected = net(X) + net(X + 1)
    wrapped = tuned(net, *CALLS)
    parent = Pipeline(net if held == "original" else wrapped).eval()
    compiled = torch.compile(parent, backend="eager", fullgraph=fullgraph)
    with torch.no_grad():
        torch.testing.assert_close(compiled(X), expected)
    assert wrapped.stats().total == (0 if fullgraph else wrapped.stats().total)
    torch._dynamo.reset()


def test_tracing_and_exporting_a_parent_sees_the_original() -> None:
    net = Net().eval()
    parent = Pipeline(net).eval()
    other = torch.randn(2, 3)
    expected = parent(other)
    wrapped = tuned(net, *CALLS)
    traced = torch.jit.trace(parent, (X,), check_trace=False)
    torch.testing.assert_close(traced(other), expected)
    exported = torch.export.export(parent, (X,))
    torch.testing.assert_close(exported.module()(other), expected)
    assert wrapped.stats().total == 0


def test_scripted_modules_can_be_tuned_alone_and_as_parts() -> None:
    scripted = torch.jit.script(torch.nn.Linear(3, 2).eval())
    expected = scripted(X)
    for module in (scripted, torch.nn.Sequential(torch.jit.script(torch.nn.Linear(3, 2).eval()))):
        answer = module(X)
        wrapped = tuned(module, *CALLS)
        torch.testing.assert_close(wrapped(X), answer)
        assert served(wrapped) == 1
        wrapped.unwrap()
    torch.testing.assert_close(scripted(X), expected)


# -- forwards --------------------------------------------------------------------------------------------------------


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
    prompt, token = torch.arange(6).reshape(2, 3), torch.tensor([[1], [2]])

    def generate() -> list[Any]:
        first = model(input_ids=prompt, use_cache=True)
        second = model(input_ids=token, past_key_values=first.past_key_values, use_cache=True)
        return [first, second]

    with torch.no_grad():
        expected = generate()
        wrapped = Module(model)
        wrapped.enable_recording()
        generate()
        prefill, decode = wrapped.recorded_graphs()
        assert prefill.problem is None
        assert "puts other values into argument past_key_values" in str(decode.problem)
        wrapped.tune(strategy=FakeTuner())
        answers = generate()
    assert wrapped.stats().served == {"graph0": 1}
    assert wrapped.stats().fallbacks == {"outside the tuned graphs": 1}
    for answer, original in zip(answers, expected, strict=True):
        assert type(answer) is type(original)
        torch.testing.assert_close(answer.logits, original.logits)
    assert answers[1].past_key_values.get_seq_length() == 4


# -- wrong calls -----------------------------------------------------------------------------------------------------


def outcome(run: Any, args: Any, kwargs: Any) -> Any:
    try:
        answer = run(*args, **kwargs)
    except Exception as error:
        return type(error), str(error)
    return answer.dtype, tuple(answer.shape), answer.nan_to_num(7.0).tolist()


WRONG_VALUES = [
    None, 3, 2.5, "text", [], {}, (), float("nan"), torch.zeros(3), torch.zeros(2, 4), torch.zeros(2, 3, 1),
    torch.zeros(0, 3), torch.zeros(2, 3, dtype=torch.int64), torch.full((2, 3), float("nan")), torch.zeros(()),
    torch.zeros(2, 3, dtype=torch.float64), torch.zeros(9, 3), torch.zeros(2), torch.ones(2, 3, requires_grad=True),
]  # fmt: skip


def malformed(generator: random.Random) -> tuple[list[Any], dict[str, Any]]:
    """A valid call with one thing wrong."""
    args: list[Any] = [torch.rand(2, 3)]
    kwargs: dict[str, Any] = {}
    if generator.random() < 0.5:
        (args.append(torch.ones(2)) if generator.random() < 0.5 else kwargs.update(mask=torch.ones(2)))
    if generator.random() < 0.3:
        kwargs["scale"] = 2.0
    kind = generator.randrange(6)
    if kind == 0 and args:
        args.pop(generator.randrange(len(args)))
    elif kind == 1:
        kwargs[generator.choice(["x", "mask", "scale", "unknown", "self", "_aitune_self"])] = generator.choice(
            WRONG_VALUES
        )
    elif kind == 2:
        args.append(generator.choice(WRONG_VALUES))
    elif kind == 3 and args:
        args[generator.randrange(len(args))] = generator.choice(WRONG_VALUES)
    elif kind == 4 and kwargs:
        kwargs[generator.choice(list(kwargs))] = generator.choice(WRONG_VALUES)
    elif kind == 5 and kwargs:
        kwargs["scal"] = kwargs.pop(generator.choice(list(kwargs)))
    return args, kwargs


class Positional(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(3, 2)

    def forward(
        self, x: torch.Tensor, /, mask: Any = None, *rest: Any, scale: float = 1.0, **more: Any
    ) -> torch.Tensor:
        y = self.linear(x) * scale + len(rest) + len(more)
        return y if mask is None else y * mask[:, None]


@pytest.mark.parametrize("module_class", [Net, Positional])
@pytest.mark.parametrize("indirect", [False, True])
def test_a_thousand_wrong_calls_behave_as_the_original_does(
    module_class: type[torch.nn.Module], indirect: bool, caplog: pytest.LogCaptureFixture
) -> None:
    net = module_class().eval()
    if indirect:
        net.forward = functools.partial(net.forward)  # type: ignore[method-assign]
    generator = random.Random(5)
    calls = [malformed(generator) for _ in range(1000)]
    with torch.no_grad():
        expected = [outcome(net, args, kwargs) for args, kwargs in calls]
        wrapped = tuned(net, *CALLS, *MASKED, call(X, torch.ones(2), scale=2.0))
        assert [outcome(wrapped, args, kwargs) for args, kwargs in calls] == expected
    errors = sum(isinstance(found[0], type) for found in expected)
    assert 300 < errors < 950
    assert 0 < served(wrapped) < 700
    assert wrapped.stats().fallbacks["outside the tuned graphs"] > 300


# -- threads ---------------------------------------------------------------------------------------------------------


class Mixed(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("offset", torch.arange(3.0))

    def forward(self, x: torch.Tensor, mode: int = 0, extra: Any = None) -> Any:
        y = x + self.offset + mode
        return y if extra is None else {"y": y, "z": extra["z"] * 2}


def test_eight_threads_get_right_answers_while_another_module_is_tuned() -> None:
    module = Mixed().eval()
    calls = [call(torch.randn(b, 3), mode) for b in (1, 4) for mode in (0, 1)]
    calls += [call(torch.randn(b, 3), 0, {"z": torch.randn(b)}) for b in (1, 4)]
    wrapped = tuned(module, *calls)
    inputs = [torch.full((size, 3), float(size)) for size in range(1, 7)]
    offset = module.offset
    wrong: list[str] = []
    expected_inside = [0] * 8
    total = 5000

    def run(thread: int) -> None:
        generator = random.Random(thread)
        for _ in range(total):
            x, mode, extra = generator.choice(inputs), generator.randrange(3), generator.random() < 0.3
            if extra:
                answer = wrapped(x, mode, {"z": x[:, 0]})
                right = torch.equal(answer["y"], x + offset + mode) and torch.equal(answer["z"], x[:, 0] * 2)
                inside = mode == 0 and x.shape[0] <= 4
            else:
                right = torch.equal(wrapped(x, mode=mode), x + offset + mode)
                inside = mode < 2 and x.shape[0] <= 4
            expected_inside[thread] += inside
            if not right:
                wrong.append(f"{x.shape} {mode} {extra}")

    def tune_others(stop: threading.Event) -> None:
        while not stop.is_set():
            tuned(Net(), *CALLS)(X)

    stop = threading.Event()
    other = threading.Thread(target=tune_others, args=(stop,))
    threads = [threading.Thread(target=run, args=(thread,)) for thread in range(8)]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-4)
    logging.getLogger("aitune").setLevel(logging.ERROR)
    try:
        for thread in (other, *threads):
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        stop.set()
        other.join()
        sys.setswitchinterval(interval)
        logging.getLogger("aitune").setLevel(logging.NOTSET)
    assert wrong == []
    statistics = wrapped.stats()
    assert sum(statistics.served.values()) == sum(expected_inside)
    assert statistics.fallbacks == {"outside the tuned graphs": 8 * total - sum(expected_inside)}
