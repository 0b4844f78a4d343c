import math

import pytest

from aitune.torch.task.paired.blocks import Block
from aitune.torch.task.paired.signed_rank import CentreInterval
from aitune.torch.task.paired.steadiness import Steadiness, half_width, is_wide


def blocks(times):
    return [Block(time, 1) for time in times]


def test_a_steady_machine_is_not_spoken_of():
    assert Steadiness.of(blocks([1.0, 1.01] * 10)).describe() == []
    assert Steadiness.of([]) == Steadiness(0.0, 0, 0)
    assert Steadiness.of(blocks([1.0, 9.0, 1.0])) == Steadiness(0.0, 0, 3)


@pytest.mark.parametrize("factor", [1.2, 0.8])
def test_drift_is_the_last_third_over_the_first(factor):
    seen = Steadiness.of(blocks([1.0] * 5 + [1.05] * 5 + [factor] * 5))
    assert seen.drift == pytest.approx(factor - 1.0)
    assert seen.describe() == ["its speed drifted by 20% meanwhile"]


def test_outliers_are_counted():
    seen = Steadiness.of(blocks([1.0, 1.0, 1.6, 1.0, 1.0, 1.0, 1.0, 4.0, 1.0, 1.0]))
    assert seen.describe() == ["2 of 10 blocks took more than 1.5 times the usual time"]


def test_half_the_width_is_a_share_of_the_ratio():
    interval = CentreInterval(math.log(2.0), math.log(1.8), math.log(2.2), 0.995)
    assert half_width(interval) == pytest.approx(math.sqrt(2.2 / 1.8) - 1.0)
    assert is_wide(interval)
    assert not is_wide(CentreInterval(0.0, -0.04, 0.04, 0.995))
