import pytest

from aitune.exceptions import AITuneUserInputError
from aitune.torch.task.profiling import (
    AllSamplesProfilingStopStrategy,
    ProfilingResultEvent,
    ProfilingStatus,
    ThroughputSaturatedProfilingStopStrategy,
    is_throughput_saturated,
)


def events(throughputs):
    return [
        ProfilingResultEvent(size, ProfilingStatus.SUCCESS, times_ns=(round(1e9 * size / throughput),))
        for size, throughput in zip((1, 2, 4, 8, 16, 32), throughputs, strict=False)
    ]


@pytest.mark.parametrize(
    ("throughputs", "saturated"),
    [
        ([], False),
        ([100.0], False),
        ([100.0, 102.0], False),
        ([100.0, 102.0, 104.0], True),
        ([100.0, 102.0, 108.0], False),
        ([100.0, 90.0, 80.0], True),
        ([100.0, 90.0, 200.0], False),
        ([100.0, 104.0, 110.0, 114.0], False),
        ([100.0, 200.0, 201.0, 190.0], True),
    ],
)
def test_saturation_is_two_in_a_row_that_do_not_gain_on_the_best(throughputs, saturated):
    assert is_throughput_saturated(throughputs) is saturated
    assert ThroughputSaturatedProfilingStopStrategy().should_stop(events(throughputs)) is saturated


def test_patience_and_gain_can_be_chosen():
    assert is_throughput_saturated([100.0, 102.0], throughput_backoff_limit=1)
    assert not is_throughput_saturated([100.0, 102.0], min_throughput_gain_ratio=0.01, throughput_backoff_limit=1)
    assert ThroughputSaturatedProfilingStopStrategy(0.05, 1).should_stop(events([100.0, 102.0]))
    assert "2 batch sizes in a row gained less than 5%" in ThroughputSaturatedProfilingStopStrategy().describe()


def test_all_samples_never_stops():
    assert not AllSamplesProfilingStopStrategy().should_stop(events([100.0, 1.0, 1.0, 1.0]))


@pytest.mark.parametrize("arguments", [(-0.1, 2), (float("nan"), 2), (0.05, 0)])
def test_numbers_out_of_range_are_refused(arguments):
    with pytest.raises(AITuneUserInputError, match=r"must be an? .+ of at least"):
        ThroughputSaturatedProfilingStopStrategy(*arguments)
