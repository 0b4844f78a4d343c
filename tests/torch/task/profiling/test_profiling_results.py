import pytest

from aitune.torch.task.profiling import ProfilingResultEvent, ProfilingResults, ProfilingStatus, get_throughput


def test_raw_times_are_kept_and_statistics_derived():
    shuffled = (6, 1, 11, 2, 10, 3, 9, 4, 8, 5, 7)
    event = ProfilingResultEvent(4, ProfilingStatus.SUCCESS, times_ns=tuple(1_000_000 * n for n in shuffled))
    assert event.execution_times == pytest.approx([n / 1000 for n in shuffled])
    measurement = event.measurement()
    assert (measurement.batch_size, measurement.num_calls) == (4, 11)
    assert measurement.median_ms == pytest.approx(6.0)
    assert measurement.p90_ms == pytest.approx(10.0)
    assert measurement.p99_ms == pytest.approx(10.9)
    # 2 and 10 of 11 enclose the median with probability 0.988, 3 and 9 with 0.935 only.
    assert (measurement.low_ms, measurement.high_ms) == (pytest.approx(2.0), pytest.approx(10.0))
    assert get_throughput(event) == pytest.approx(4 / 0.006)


def test_calls_timed_together_count_one_by_one():
    event = ProfilingResultEvent(1, ProfilingStatus.SUCCESS, times_ns=(200_000, 400_000), calls_per_time=20)
    assert event.execution_times == pytest.approx([10e-6, 20e-6])
    assert event.num_calls == 40
    assert event.measurement().median_ms == pytest.approx(0.015)


def test_events_without_times_have_no_measurement():
    lost = ProfilingResultEvent(8, ProfilingStatus.OUT_OF_MEMORY, reason="out of memory")
    kept = ProfilingResultEvent(4, ProfilingStatus.SUCCESS, times_ns=(1000,))
    assert lost.measurement() is None
    assert get_throughput(lost) == 0.0
    assert [m.batch_size for m in ProfilingResults((kept, lost), "out of memory").measurements()] == [4]
