"""Gradients, autocast, transforms, tracing and compilation around a tuned module."""

import pytest
import torch
from serving_fakes import Net, call, served, tuned

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
