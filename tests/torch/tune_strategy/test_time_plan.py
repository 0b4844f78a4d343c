import pytest
import torch

from aitune.testing.simulated_machine import SimulatedMachine
from aitune.torch.module.sample import Sample
from aitune.torch.tune_strategy.time_plan import LEAST_CALLS, screen_seconds, why_too_slow


class Slow(torch.nn.Module):
    def __init__(self, machine, seconds):
        super().__init__()
        self.machine, self.seconds = machine, seconds

    def forward(self, x):
        self.machine.work(self.seconds)
        return x.add_(1.0)


def ask(seconds, seconds_left):
    machine, x = SimulatedMachine(), torch.zeros(2)
    reason = why_too_slow(Slow(machine, seconds), Sample((x,), {}), machine, seconds_left)
    assert float(x.sum()) == 0.0  # the recorded call is as it was
    return reason


def test_without_a_budget_nothing_is_run():
    assert why_too_slow(None, None, None, None) is None
    assert "0 s of the time budget are left" in why_too_slow(None, None, None, -1.0)


def test_room_for_the_least_number_of_calls_is_enough():
    assert ask(1.0, 1.0 + LEAST_CALLS) is None
    reason = ask(1.0, 0.5 + LEAST_CALLS)
    assert f"about {LEAST_CALLS} calls of the original module, 1.0 s each, and 14 s of the time budget" in reason


@pytest.mark.parametrize(("left", "seconds"), [(None, 3.0), (600.0, 3.0), (20.0, 2.0), (5.0, 1.0), (-1.0, 1.0)])
def test_a_first_comparison_takes_a_share_of_what_is_left(left, seconds):
    assert screen_seconds(left) == pytest.approx(seconds)
