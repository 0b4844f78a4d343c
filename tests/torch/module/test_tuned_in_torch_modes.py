"""Gradients, autocast, transforms, tracing and compilation around a tuned module."""

from typing import Any

import pytest
import torch
from serving_fakes import Net, call, served, tuned
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from aitune.torch.module.wrapper_module import Module

CALLS = [call(torch.randn(b, 3)) for b in (1, 4)]
MASKED = [call(torch.randn(b, 3), torch.ones(b)) for b in (1, 4)]
X = torch.randn(2, 3)


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


class Making(torch.nn.Module):
    """Makes a tensor as torch is set to make them."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + torch.ones(3)


def test_another_default_dtype_runs_on_the_original() -> None:
    wrapped = tuned(Making(), *CALLS)
    torch.set_default_dtype(torch.float64)
    try:
        assert wrapped(X).dtype is torch.float64
        double = tuned(Making(), *CALLS)
        assert double(X).dtype is torch.float64
        assert served(double) == 1
    finally:
        torch.set_default_dtype(torch.float32)
    assert wrapped(X).dtype is double(X).dtype is torch.float32
    assert wrapped.stats().fallbacks == double.stats().fallbacks == {"another default dtype": 1}
    assert served(wrapped) == 1


class Counting(TorchFunctionMode):
    def __init__(self) -> None:
        super().__init__()
        self.called: list[str] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.called.append(func.__name__)
        return func(*args, **(kwargs or {}))


def test_a_torch_function_mode_sees_what_the_original_calls(caplog: pytest.LogCaptureFixture) -> None:
    wrapped = tuned(Making(), *CALLS)
    with Counting() as mode:
        wrapped(X)
    assert "ones" in mode.called
    assert wrapped.stats().fallbacks == {"a torch function mode": 1}
    assert "Making: called with a torch function mode" in caplog.text


def test_a_dispatch_mode_sees_what_the_original_calls() -> None:
    class Seen(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            called.append(str(func))
            return func(*args, **(kwargs or {}))

    called: list[str] = []
    wrapped = tuned(Making(), *CALLS)
    with Seen():
        wrapped(X)
    assert any("add" in name for name in called)
    assert served(wrapped) == 0


def test_another_default_device_runs_on_the_original() -> None:
    wrapped = tuned(Making(), *CALLS)
    with torch.device("cpu"):
        wrapped(X)
    assert served(wrapped) == 1
    with torch.device("meta"), pytest.raises(RuntimeError):
        wrapped(X)
    torch.set_default_device("meta")
    try:
        elsewhere = Module(torch.nn.Linear(3, 2, device="cpu").eval())
        with pytest.raises(RuntimeError):
            wrapped(X)
        cpu = [torch.zeros(size, 3, device="cpu") for size in (1, 4)]
        elsewhere = tuned(elsewhere, *map(call, cpu))
        elsewhere(X)
        assert served(elsewhere) == 1
    finally:
        torch.set_default_device(None)
    elsewhere(X)
    assert elsewhere.stats().fallbacks == {"a torch function mode": 1}
    assert wrapped.stats().fallbacks == {"a torch function mode": 2}


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
