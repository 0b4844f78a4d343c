import pytest

from aitune.torch.task.outcome import BatchMeasurement, PairedComparison
from aitune.torch.task.profiling.profiling_stop import AllSamplesProfilingStopStrategy
from aitune.torch.task.profiling.results import ProfilingResultEvent, ProfilingStatus
from aitune.torch.tune_strategy.sweep_result import CutShort, LatencyResult, ThroughputResult, is_hopeless

MILLISECOND = 1_000_000


def measured(batch_size, median_ms):
    return BatchMeasurement(batch_size, median_ms, median_ms, median_ms, 0.9 * median_ms, 1.1 * median_ms, 10)


SWEPT = (measured(1, 2.0), measured(4, 5.0))


def test_throughput_with_its_interval():
    result = ThroughputResult(4, SWEPT)
    assert result.metric == pytest.approx(800.0)
    assert result.bounds == pytest.approx((4000 / 5.5, 4000 / 4.5))
    assert result.to_json_dict("throughput") == {"selected_batch_size": 4, "throughput": pytest.approx(800.0)}


def test_latency_with_its_interval():
    result = LatencyResult(1, SWEPT)
    assert result.metric == 2.0
    assert result.bounds == pytest.approx((1.8, 2.2))


def test_a_paired_comparison_counts_for_both_of_its_sides():
    pair = PairedComparison("a", "b", 1.5, 1.4, 1.6, 0.995, "faster", 10, 10, 1.0, "")
    first, second = (ThroughputResult(1, SWEPT, key, (pair,)) for key in ("a", "b"))
    assert first.verdict_against(second) == "faster"
    assert second.verdict_against(first) == "slower"
    assert first.verdict_against(ThroughputResult(1, SWEPT, "c")) is None


@pytest.mark.parametrize(
    ("times", "hopeless"),
    [
        ([9.0], False),
        ([9.0, 9.0], True),
        ([9.0, 3.0], False),
        ([2.0, 9.0], False),
        # Both far behind, and the second less so.
        ([9.0, 7.0], False),
        ([2.1, 2.1], False),
    ],
)
def test_what_is_hopeless(times, hopeless):
    best = {1: measured(1, 1.0), 2: measured(2, 1.0)}
    swept = [measured(size, time) for size, time in enumerate(times, start=1)]
    assert is_hopeless(swept, best) is hopeless


def test_without_anything_to_compare_with_nothing_is_hopeless():
    assert not is_hopeless([measured(1, 9.0), measured(2, 9.0)], {1: measured(1, 1.0)})


def test_a_sweep_is_cut_short_where_more_cannot_matter():
    stop = CutShort(AllSamplesProfilingStopStrategy(), lambda swept: swept[-1].median_ms > 4.0, "it is too slow")
    events = [
        ProfilingResultEvent(size, ProfilingStatus.SUCCESS, (time * MILLISECOND,) * 5)
        for size, time in ((1, 2), (2, 3), (4, 5))
    ]
    assert [stop.should_stop(events[:count]) for count in (1, 2, 3)] == [False, False, True]
    assert "it is too slow" in stop.describe()
