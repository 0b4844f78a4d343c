"""What the guide says about limits and checks is what the code does."""

import re
from pathlib import Path

import pytest
import torch

from aitune.torch.task.outcome import Rejection
from aitune.torch.task.tolerance import tolerance_for

GUIDE = (Path(__file__).parents[2] / "docs" / "correctness.md").read_text()
LIMITS = re.findall(r"^\| ([a-z0-9, ]+) \| (\d+) \| ([0-9e-]+) \| (\d+) \|$", GUIDE, re.MULTILINE)
CHECKS = re.findall(r"^\| `([a-z ]+)` \|", GUIDE, re.MULTILINE)


def test_the_tables_are_there():
    assert len(LIMITS) == 4
    assert len(CHECKS) == 7


@pytest.mark.parametrize(("dtypes", "factor", "floor", "peak"), LIMITS)
def test_the_limits_are_those_of_the_code(dtypes, factor, floor, peak):
    for name in dtypes.split(", "):
        tolerance = tolerance_for(getattr(torch, name))
        assert (tolerance.noise_factor, tolerance.floor, tolerance.peak_factor) == (
            float(factor), float(floor), float(peak),
        )  # fmt: skip


@pytest.mark.parametrize("check", CHECKS)
def test_the_checks_are_those_of_the_code(check):
    assert f'"{check}"' in Rejection.__doc__
