import gc

import pytest
import torch

from aitune.exceptions import ProfilingError
from aitune.testing.simulated_machine import TYPICAL, SimulatedMachine
from aitune.torch.module.sample import Sample
from aitune.torch.task.profiling import (
    AllSamplesProfilingStopStrategy,
    MeasuringStrategy,
    NumStepsMeasuringStopStrategy,
    ProfilingConfig,
    ProfilingStatus,
    profile,
)
from aitune.torch.task.profiling.measuring import MeasuredTimes

FEW = NumStepsMeasuringStopStrategy(num_steps=5, warmup_samples=2)


def batch_of(size):
    return Sample((size,), {})


def simulated(machine, seconds):
    """A callable whose call at batch size n takes ``seconds(n)``."""

    def infer(size):
        machine.work(seconds(size))

    return infer


def sweep(sizes, seconds, **kwargs):
    machine = kwargs.pop("machine", None) or SimulatedMachine()
    deadline = kwargs.pop("seconds_left", None)
    config = ProfilingConfig(sizes, **{"measurement_stop_strategy": FEW, **kwargs})
    return profile(
        simulated(machine, seconds),
        batch_of,
        config,
        deadline=None if deadline is None else machine.now() + deadline,
        machine=machine,
    )


def test_every_batch_size_is_timed_upwards():
    results = sweep([4, 1, 2], lambda n: 1e-3 * n, profiling_stop_strategy=AllSamplesProfilingStopStrategy())
    assert [event.batch_size for event in results.events] == [1, 2, 4]
    assert [m.median_ms for m in results.measurements()] == pytest.approx([1.0, 2.0, 4.0])
    assert [event.times_ns for event in results.events] == [(n * 1_000_000,) * 5 for n in (1, 2, 4)]
    assert [event.warmup_calls for event in results.events] == [2, 2, 2]
    assert results.stop_reason == "every batch size was measured"


def test_a_saturated_sweep_stops():
    results = sweep([1, 2, 4, 8, 16, 32], lambda n: 1e-3 * max(n, 4))
    assert [event.batch_size for event in results.events] == [1, 2, 4, 8, 16]
    assert "saturated" in results.stop_reason


def test_calls_of_a_few_microseconds_are_timed_in_groups():
    (event,) = sweep([1], lambda n: 10e-6).events
    assert event.calls_per_time == 20
    assert event.times_ns == (200_000,) * 5
    assert event.measurement().median_ms == pytest.approx(0.010)


def test_the_default_stop_reaches_its_precision():
    machine = SimulatedMachine(TYPICAL, seed=3)
    (event,) = sweep([1], lambda n: 1e-3, machine=machine, measurement_stop_strategy=None).events
    measurement = event.measurement()
    assert (measurement.high_ms - measurement.low_ms) / 2 <= 0.01 * measurement.median_ms
    assert event.seconds < 1.1


def test_long_calls_end_with_the_time_cap():
    (event,) = sweep([1], lambda n: 5.0, measurement_stop_strategy=None).events
    assert (event.warmup_calls, event.num_calls, event.seconds) == (1, 1, pytest.approx(10.0))


def raising_from(size, error):
    def seconds(n):
        if n >= size:
            raise error
        return 1e-3 * n

    return seconds


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        torch.OutOfMemoryError("CUDA out of memory"),
        RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_out_of_memory_drops_that_size_and_keeps_the_smaller_ones(error):
    results = sweep([1, 2, 4, 8], raising_from(4, error))
    assert [m.batch_size for m in results.measurements()] == [1, 2]
    assert results.events[-1].status is ProfilingStatus.OUT_OF_MEMORY
    assert len(results.events) == 3
    assert "batch size 4: out of memory" in results.stop_reason


def test_another_error_at_a_larger_size_ends_the_sweep_with_its_reason():
    results = sweep([1, 2, 4], raising_from(2, ValueError("only 1")))
    assert [m.batch_size for m in results.measurements()] == [1]
    assert results.events[-1].status is ProfilingStatus.FAILED
    assert results.stop_reason == "batch size 2: ValueError: only 1"


def test_a_callable_that_raises_on_the_seventh_call_is_no_measurement():
    machine = SimulatedMachine()

    def seconds(call):
        if call == 6:
            raise RuntimeError("the seventh")
        return 1e-3

    with pytest.raises(ProfilingError, match="the seventh"):
        profile(machine.callable(seconds), batch_of, ProfilingConfig([1]), machine=machine)


def test_nothing_measured_is_an_error_with_the_first_cause():
    cause = ValueError("broken")
    with pytest.raises(ProfilingError, match=r"batch sizes \[1, 2\].*ValueError: broken") as caught:
        sweep([1, 2], raising_from(1, cause))
    assert caught.value.__cause__ is cause


def test_make_batch_that_fails_is_the_cause_too():
    def make_batch(size):
        raise KeyError("missing")

    with pytest.raises(ProfilingError, match="missing") as caught:
        profile(lambda: None, make_batch, ProfilingConfig([1]), machine=SimulatedMachine())
    assert isinstance(caught.value.__cause__, KeyError)


def test_a_deadline_in_the_past_is_an_error():
    with pytest.raises(ProfilingError, match="time was up before batch size 1"):
        sweep([1], lambda n: 1e-3, seconds_left=-1.0)


def test_a_batch_size_that_cannot_end_in_time_is_skipped():
    results = sweep([1, 8], lambda n: 1.0 * n, seconds_left=10.0)
    assert [event.status for event in results.events] == [ProfilingStatus.SUCCESS, ProfilingStatus.SKIPPED]
    assert "time was up before batch size 8" in results.stop_reason


def test_the_deadline_cuts_a_measurement_short():
    (event,) = sweep([1], lambda n: 1.0, seconds_left=4.5).events
    assert (event.warmup_calls, event.num_calls) == (2, 3)
    assert event.reason == "time was up after 3 timed calls"


def test_the_deadline_while_warming_up_leaves_the_warm_up_calls():
    (event,) = sweep([1], lambda n: 1.0, seconds_left=1.5).events
    assert (event.warmup_calls, event.num_calls) == (1, 1)
    assert "these are warm-up calls" in event.reason


def test_inputs_are_as_they_were_for_each_call():
    seen = []

    def infer(x, scale):
        seen.append((float(x[0]), float(scale["by"])))
        x.add_(1.0)
        scale["by"].add_(1.0)

    x, by = torch.zeros(1), torch.ones(1)
    config = ProfilingConfig([1], measurement_stop_strategy=FEW)
    profile(infer, lambda n: Sample((x,), {"scale": {"by": by}}), config, copy_inputs=True)
    assert len(seen) > 5
    assert set(seen) == {(0.0, 1.0)}
    assert (float(x), float(by)) == (0.0, 1.0)


def test_copies_are_not_part_of_the_time():
    machine = SimulatedMachine()

    class Slow(torch.Tensor):
        @classmethod
        def __torch_function__(cls, func, types, args=(), kwargs=None):
            if func is torch.Tensor.clone:
                machine.sleep(1.0)
            return super().__torch_function__(func, types, args, kwargs or {})

    sample = Sample((torch.zeros(1).as_subclass(Slow),), {})
    config = ProfilingConfig([1], measurement_stop_strategy=FEW)
    results = profile(machine.callable(1e-3), lambda n: sample, config, copy_inputs=True, machine=machine)
    assert results.events[0].times_ns == (1_000_000,) * 5
    assert results.events[0].seconds == pytest.approx(7 * 1.001)


@pytest.mark.parametrize("error", [None, KeyboardInterrupt()])
def test_garbage_collector_and_gradients_are_off_inside_and_back_after(error):
    states = []

    def infer(size):
        states.append((gc.isenabled(), torch.is_grad_enabled()))
        if error is not None:
            raise error

    if error is None:
        profile(infer, batch_of, ProfilingConfig([1], measurement_stop_strategy=FEW))
    else:
        with pytest.raises(KeyboardInterrupt):
            profile(infer, batch_of, ProfilingConfig([1], measurement_stop_strategy=FEW))
    assert set(states) == {(False, False)}
    assert gc.isenabled()
    assert torch.is_grad_enabled()


def test_a_collector_that_was_off_stays_off():
    gc.disable()
    try:
        profile(lambda n: None, batch_of, ProfilingConfig([1], measurement_stop_strategy=FEW))
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_a_measuring_strategy_of_ones_own_is_used():
    class Constant(MeasuringStrategy):
        def measure(self, call, stop, machine, deadline):
            return MeasuredTimes((7_000_000,), 1, 0)

    config = ProfilingConfig([1], measuring_strategy=Constant())
    results = profile(lambda: None, batch_of, config, machine=SimulatedMachine())
    assert results.measurements()[0].median_ms == pytest.approx(7.0)


def test_a_real_module_on_the_real_clock():
    module = torch.nn.Linear(4, 4)
    config = ProfilingConfig([1, 2], measurement_stop_strategy=FEW)
    results = profile(module, lambda n: Sample((torch.zeros(n, 4),), {}), config)
    assert [m.batch_size for m in results.measurements()] == [1, 2]
    assert all(m.median_ms > 0 for m in results.measurements())
