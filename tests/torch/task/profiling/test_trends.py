import random

import pytest
from scipy import stats

from aitune.testing.simulated_machine import BUSY, TYPICAL, SimulatedMachine
from aitune.torch.module.sample import Sample
from aitune.torch.task.profiling import NumStepsMeasuringStopStrategy, ProfilingConfig, ProfilingStatus, profile
from aitune.torch.task.profiling.trends import _concordance, leaked_bytes, slowing

MIB = 2**20
FIFTY = ProfilingConfig([1], measurement_stop_strategy=NumStepsMeasuringStopStrategy(50, 2))


def measure(infer, machine, config=FIFTY):
    return profile(infer, lambda size: Sample((size,), {}), config, machine=machine)


def noisy(count, trend, spread, seed=0):
    draw = random.Random(seed)
    return [(1.0 + trend * n / count) * draw.lognormvariate(0.0, spread) for n in range(count)]


def test_rank_correlation_agrees_with_scipy():
    values = noisy(40, 0.3, 0.1)
    assert _concordance(values) == pytest.approx(stats.kendalltau(range(40), values).statistic)


@pytest.mark.parametrize("count", [12, 50, 1000])
def test_calls_that_get_slower_and_slower_are_found(count):
    assert slowing(noisy(count, 1.0, 0.03)) == pytest.approx(1.875 / 1.125, rel=0.15)


@pytest.mark.parametrize(
    "times",
    [
        noisy(11, 5.0, 0.01),
        noisy(200, 0.0, 0.2),
        noisy(200, 0.1, 0.01),
        noisy(100, -0.5, 0.01),
        [1.0] * 50 + [2.0] * 50,
        [1.0] * 100,
    ],
    ids=["too few", "noise", "hardly", "faster", "once", "constant"],
)
def test_no_trend_is_made_up(times):
    assert slowing(times) is None


def test_noise_of_a_machine_is_no_trend():
    for seed in range(30):
        machine = SimulatedMachine(BUSY if seed % 2 else TYPICAL, seed)
        assert measure(machine.callable(0.004), machine).notes() == ()


def test_memory_that_grows_all_the_time_is_leaked():
    assert leaked_bytes([100 * MIB + n * MIB for n in range(20)]) == 19 * MIB


@pytest.mark.parametrize(
    "readings",
    [
        [n * MIB for n in range(11)],
        [100 * MIB] * 40,
        [100 * MIB + min(n, 10) * MIB for n in range(40)],
        [100 * MIB + n * 1000 for n in range(100)],
        [(100 + n % 7) * MIB for n in range(100)],
    ],
    ids=["too few", "constant", "fills a cache", "hardly", "up and down"],
)
def test_memory_that_is_kept_or_given_back_is_not(readings):
    assert leaked_bytes(readings) is None


def test_a_callable_that_slows_down_with_every_call_is_reported():
    machine = SimulatedMachine(TYPICAL)
    results = measure(machine.callable(lambda call: 0.002 * (1 + 0.02 * call)), machine)
    (note,) = results.notes()
    assert note.startswith("batch size 1: calls get slower and slower: within 50 calls")


def test_a_callable_that_leaks_memory_is_reported():
    machine = SimulatedMachine()

    def infer(_):
        machine.work(0.001)
        machine.occupied_bytes += MIB

    (note,) = measure(infer, machine).notes()
    assert note == (
        "batch size 1: memory is not given back: the process grew by 49 MiB in 50 calls, about 1004 KiB each"
    )


def test_a_callable_that_raises_on_the_seventh_call_is_reported_with_the_calls_before():
    machine = SimulatedMachine()

    def seconds(call):
        if call >= 13:
            raise RuntimeError("it broke")
        return 0.001

    # Seven calls at batch size 1, so that the seventh of batch size 2 raises.
    config = ProfilingConfig([1, 2], measurement_stop_strategy=NumStepsMeasuringStopStrategy(5, 2))
    results = measure(machine.callable(seconds), machine, config)
    assert [event.status for event in results.events] == [ProfilingStatus.SUCCESS, ProfilingStatus.FAILED]
    assert results.notes() == ("batch size 2: after 6 calls that went well: RuntimeError: it broke",)
