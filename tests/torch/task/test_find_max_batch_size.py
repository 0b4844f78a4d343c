import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from aitune.exceptions import AITuneUserInputError, ProfilingError
from aitune.torch.task.find_max_batch_size import BatchSizeTrial, find_max_batch_size

pytestmark = pytest.mark.usefixtures("cheap_collections")


def failing_above(largest, error):
    def run(size):
        if size > largest:
            raise error

    return run


@given(st.integers(1, 40), st.integers(0, 2000), st.integers(0, 2000))
def test_the_largest_size_that_runs_is_found(start, more, room):
    largest, limit = start + more, start + room
    found = find_max_batch_size(failing_above(largest, MemoryError()), start, limit)
    assert found.batch_size == min(largest, limit)
    assert found.limited_by == ("limit" if limit <= largest else "memory")


def test_doubling_then_closing_in_and_every_trial_is_kept():
    found = find_max_batch_size(failing_above(11, torch.OutOfMemoryError("CUDA out of memory")), 1, 64)
    assert [trial.batch_size for trial in found.trials] == [1, 2, 4, 8, 16, 12, 10, 11]
    assert [trial.batch_size for trial in found.trials if trial.failure] == [16, 12]
    assert found.trials[0] == BatchSizeTrial(1, None)
    assert found.reason == "batch size 12 fails: OutOfMemoryError: CUDA out of memory"


def test_a_coarser_resolution_saves_trials():
    found = find_max_batch_size(failing_above(1000, MemoryError()), 1, 4096, resolution=128)
    assert 1000 - 128 < found.batch_size <= 1000
    assert len(found.trials) == 13


def test_saturation_ends_the_search():
    asked = []

    def is_saturated(size):
        asked.append(size)
        return size >= 8

    found = find_max_batch_size(lambda size: None, 1, 64, is_saturated=is_saturated)
    assert (found.batch_size, found.limited_by) == (8, "saturation")
    assert asked == [1, 2, 4, 8]


def test_another_error_later_is_the_limit_with_its_reason():
    found = find_max_batch_size(failing_above(4, ValueError("profile ends at 4")), 1, 64)
    assert (found.batch_size, found.limited_by) == (4, "error")
    assert "ValueError: profile ends at 4" in found.reason


def test_another_error_at_the_first_size_is_raised_as_it_is():
    error = ValueError("broken")
    with pytest.raises(ValueError, match="broken") as caught:
        find_max_batch_size(failing_above(0, error), 1, 8)
    assert caught.value is error


def test_out_of_memory_at_the_first_size_says_so():
    error = MemoryError("no room")
    with pytest.raises(ProfilingError, match="batch size 2, the smallest one, does not fit") as caught:
        find_max_batch_size(failing_above(1, error), 2, 8)
    assert caught.value.__cause__ is error


def test_an_interrupt_is_no_failure():
    with pytest.raises(KeyboardInterrupt):
        find_max_batch_size(failing_above(2, KeyboardInterrupt()), 1, 8)


@pytest.mark.parametrize("arguments", [(0, 4), (1.0, 4), (True, 4), (4, 2), (1, 4, 0)])
def test_bounds_that_make_no_sense_are_refused(arguments):
    start, limit, *resolution = arguments
    with pytest.raises(AITuneUserInputError, match="must be"):
        find_max_batch_size(lambda size: None, start, limit, **({"resolution": resolution[0]} if resolution else {}))


def test_the_search_ends_when_there_is_no_time_for_the_next():
    tried = []
    found = find_max_batch_size(tried.append, 1, 64, has_time=lambda size: size <= 8)
    assert tried == [1, 2, 4, 8]
    assert (found.batch_size, found.limited_by) == (8, "time")
    assert found.reason == "there was no time to try batch size 16"
