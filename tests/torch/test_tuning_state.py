"""What a module keeps from call to call is as before a tuning run."""

import pytest
import torch
from tuning_models import QuickStrategy

import aitune.torch as ait
from aitune.testing.fakes import FakeBackend


class Counting(torch.nn.Module):
    """Counts its calls in a buffer and in an attribute, and draws."""

    calls: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))
        self.seen: list[int] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        self.seen.append(x.shape[0])
        return self.linear(x) + 0 * torch.rand(())


@pytest.mark.parametrize("dry_run", [False, True])
def test_a_module_that_counts_its_calls_is_not_advanced(dry_run: bool) -> None:
    module = Counting().eval()
    module(torch.ones(1, 4))
    wrapped = ait.Module(module, "counting")
    strategy = QuickStrategy(backends=[FakeBackend()])
    ait.tune(wrapped, [torch.randn(4) for _ in range(4)], batch_sizes=[1, 2], strategy=strategy, dry_run=dry_run)
    assert (module.calls.item(), module.seen) == (1, [1])
    wrapped(torch.ones(1, 4))
    assert (module.calls.item(), module.seen) == (2, [1, 1])
