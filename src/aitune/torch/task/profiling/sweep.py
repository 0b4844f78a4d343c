"""Measure a callable at one batch size after the other."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from aitune.exceptions import ProfilingError
from aitune.torch.module.sample import Sample
from aitune.torch.task.machine import LOCAL_MACHINE, Machine
from aitune.torch.task.memory import is_out_of_memory, release_memory
from aitune.torch.task.profiling.config import ProfilingConfig
from aitune.torch.task.profiling.results import ProfilingResultEvent, ProfilingResults, ProfilingStatus
from aitune.torch.task.timed_call import TimedCall, measuring_conditions, timer_for

_LEAST_CALLS = 2
"""A batch size is not begun when not even a warm-up call and a timed one are expected to fit."""


def profile(
    infer: Callable[..., Any],
    make_batch: Callable[[int], Sample],
    config: ProfilingConfig,
    *,
    device: torch.device | str = "cpu",
    copy_inputs: bool = False,
    deadline: float | None = None,
    machine: Machine = LOCAL_MACHINE,
) -> ProfilingResults:
    """Measure a callable at the batch sizes of ``config``, smallest first.

    The sweep ends when the stop strategy says so, when memory runs out (that batch size is dropped), when a call
    raises, or at the deadline; the batch sizes before it count. Gradients and the garbage collector are off meanwhile.

    Args:
        infer: What is measured; it is called with the arguments of a sample.
        make_batch: Makes the arguments for a batch size.
        config: Which batch sizes, and when to stop.
        device: Where ``infer`` runs; it decides what clock is used.
        copy_inputs: Whether every call gets a copy of the arguments, because it may change them.
        deadline: Moment, in seconds of :func:`time.monotonic`, at which to end with what there is.
        machine: Whose clocks are read.

    Returns:
        Raw times and status of every batch size that was looked at; at least one was measured.

    Raises:
        ProfilingError: Nothing could be measured; the first cause is chained.
    """
    run = _Sweep(infer, make_batch, config, _Surroundings(device, copy_inputs, deadline, machine))
    events: list[ProfilingResultEvent] = []
    stop_reason = "every batch size was measured"
    with measuring_conditions():
        for batch_size in config.sweep:
            if not run.fits(batch_size, events):
                events.append(
                    ProfilingResultEvent(batch_size, ProfilingStatus.SKIPPED, reason="it would not end in time")
                )
                stop_reason = f"time was up before batch size {batch_size}"
                break
            event = run.measure(batch_size)
            events.append(event)
            if event.status is not ProfilingStatus.SUCCESS:
                stop_reason = f"batch size {batch_size}: {event.reason}"
                # Outside the handler that caught the error, whose traceback held the tensors of the failed call.
                release_memory()
                break
            if config.profiling_stop.should_stop(tuple(events)):
                stop_reason = config.profiling_stop.describe()
                break
    if not any(event.times_ns for event in events):
        raise ProfilingError(
            f"nothing could be measured at batch sizes {list(config.sweep)}: {stop_reason}; expected at least the "
            f"smallest to run; try the call by hand, or give smaller batch sizes or more time"
        ) from run.first_error
    return ProfilingResults(tuple(events), stop_reason)


@dataclass(frozen=True)
class _Surroundings:
    device: torch.device | str
    copy_inputs: bool
    deadline: float | None
    machine: Machine


class _Sweep:
    def __init__(
        self,
        infer: Callable[..., Any],
        make_batch: Callable[[int], Sample],
        config: ProfilingConfig,
        around: _Surroundings,
    ) -> None:
        self._infer = infer
        self._make_batch = make_batch
        self._config = config
        self._around = around
        self._timer = timer_for(around.device, around.machine)
        self._was_measured = False
        self.first_error: Exception | None = None

    def fits(self, batch_size: int, events: list[ProfilingResultEvent]) -> bool:
        """Say whether a batch size is expected to be measurable before the deadline, by what the last one took."""
        if self._around.deadline is None:
            return True
        left = self._around.deadline - self._around.machine.now()
        last = events[-1].measurement() if events else None
        if last is None:
            return left > 0
        return left > _LEAST_CALLS * last.median_ms / 1000.0 * batch_size / last.batch_size

    def measure(self, batch_size: int) -> ProfilingResultEvent:
        """Measure one batch size; an exception becomes the event's status."""
        machine = self._around.machine
        begin = machine.now()
        call: TimedCall | None = None
        try:
            sample = self._make_batch(batch_size)
            call = TimedCall(self._infer, sample, self._timer, self._around.copy_inputs)
            measured = self._config.measuring.measure(
                call, self._config.measurement_stop, machine, self._around.deadline
            )
        except Exception as error:
            if not self._was_measured:
                self.first_error = error
            out_of_memory = is_out_of_memory(error)
            return ProfilingResultEvent(
                batch_size,
                ProfilingStatus.OUT_OF_MEMORY if out_of_memory else ProfilingStatus.FAILED,
                seconds=machine.now() - begin,
                reason=f"{'out of memory: ' if out_of_memory else ''}{_when(call)}{type(error).__name__}: {error}",
            )
        self._was_measured = True
        return ProfilingResultEvent(
            batch_size,
            ProfilingStatus.SUCCESS,
            times_ns=measured.times_ns,
            calls_per_time=measured.calls_per_time,
            warmup_calls=measured.warmup_calls,
            seconds=machine.now() - begin,
            reason=measured.note,
        )


def _when(call: TimedCall | None) -> str:
    return f"after {call.calls} calls that went well: " if call is not None and call.calls else ""
