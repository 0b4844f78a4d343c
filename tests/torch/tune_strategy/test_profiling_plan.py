import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aitune.torch.task.profiling.config import ProfilingConfig
from aitune.torch.task.profiling.measuring_stop import NumStepsMeasuringStopStrategy
from aitune.torch.tune_strategy.profiling_plan import between_neighbours, plan_profiling, powers_of_two


@pytest.mark.parametrize(
    ("given_sizes", "named", "batching", "largest", "expected"),
    [
        (None, None, True, 8, (1, 2, 4, 8)),
        (None, None, True, 6, (1, 2, 4, 6)),
        (None, (1, 8, 64), True, 8, (1, 8)),
        (None, (16, 32), True, 8, (8,)),
        (None, None, False, 1, (1,)),
        ((4, 2, 64), (1, 8), True, 8, (2, 4)),
        ((64, 128), None, True, 8, (8,)),
        ((8, 2), None, False, 8, (2,)),
    ],
)
def test_batch_sizes_are_capped_by_the_largest(given_sizes, named, batching, largest, expected):
    config = None if given_sizes is None else ProfilingConfig(given_sizes)
    planned = plan_profiling(config, named, batching, largest)
    assert planned.batch_sizes == expected
    assert planned.batching is batching


def test_what_else_the_user_set_stays():
    stop = NumStepsMeasuringStopStrategy(5)
    assert plan_profiling(ProfilingConfig([1], measurement_stop_strategy=stop), None, True, 4).measurement_stop is stop


@given(st.integers(1, 50), st.integers(0, 500))
def test_powers_of_two_reach_from_the_first_to_the_last(first, more):
    sizes = powers_of_two(first, first + more)
    assert (sizes[0], sizes[-1]) == (first, first + more)
    assert sizes == sorted(set(sizes))
    assert all(later <= 2 * earlier for earlier, later in itertools.pairwise(sizes))


@pytest.mark.parametrize(
    ("best", "measured", "expected"),
    [
        (8, [1, 2, 4, 8, 16], [6, 12]),
        (8, [1, 2, 4, 8], [6]),
        (1, [1, 2, 4], []),
        (2, [1, 2, 4], [3]),
        (4, [4], []),
        (64, [32, 64, 72], [48]),
        (8, [4, 6, 8, 12, 16], [10]),
    ],
)
def test_batch_sizes_half_way_to_the_neighbours_of_the_best(best, measured, expected):
    assert between_neighbours(best, measured) == expected
