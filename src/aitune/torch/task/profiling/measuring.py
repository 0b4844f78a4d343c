"""How one batch size is measured."""

from __future__ import annotations

import statistics
from abc import ABC, abstractmethod
from dataclasses import dataclass

from aitune.torch.task.machine import Machine
from aitune.torch.task.profiling.measuring_stop import MeasuringProgress, MeasuringStopStrategy
from aitune.torch.task.profiling.trends import leaked_bytes, slowing
from aitune.torch.task.timed_call import NANOSECONDS, TimedCall, collect_young_garbage


@dataclass(frozen=True)
class MeasuredTimes:
    """Raw result of measuring one batch size.

    Args:
        times_ns: What the clock gave, in order; each covers ``calls_per_time`` calls.
        calls_per_time: Calls that were timed together.
        warmup_calls: Calls before the first timed one.
        note: What to know of it, such as that time was up.
    """

    times_ns: tuple[int, ...]
    calls_per_time: int
    warmup_calls: int
    note: str | None = None


class MeasuringStrategy(ABC):
    """Measures one callable at one batch size."""

    @abstractmethod
    def measure(
        self, call: TimedCall, stop: MeasuringStopStrategy, machine: Machine, deadline: float | None
    ) -> MeasuredTimes:
        """Time the calls.

        Args:
            call: What is timed.
            stop: When to end.
            machine: Whose clock is read.
            deadline: Moment, in seconds of ``machine.now()``, at which to end with what there is.
        """


@dataclass(frozen=True)
class ModelExecutionTimeMeasuringStrategy(MeasuringStrategy):
    """Measures the time of one call after the other, from the arguments to the outputs; the default."""

    def measure(
        self, call: TimedCall, stop: MeasuringStopStrategy, machine: Machine, deadline: float | None
    ) -> MeasuredTimes:
        """Warm up, then time calls until ``stop`` has enough or the deadline is reached.

        Args:
            call: What is timed.
            stop: When to end.
            machine: Whose clock is read.
            deadline: Moment, in seconds of ``machine.now()``, at which to end with what there is.

        Returns:
            At least one time. When the deadline came before the warm-up was over, the warm-up calls stand in, without
            the first where there are more.
        """
        warmup_ns: list[int] = []
        begin = machine.now()
        # One call is always made before the first timed one: it allocates, compiles and fills caches.
        while not warmup_ns or not stop.is_warm(_progress(warmup_ns, machine.now() - begin)):
            warmup_ns.append(call.time())
            collect_young_garbage()
            if _is_over(machine, deadline):
                note = "time was up while warming up: these are warm-up calls"
                return MeasuredTimes(tuple(warmup_ns[1:] or warmup_ns), 1, min(len(warmup_ns) - 1, 1), note)
        timed = _Timed(call, call.group_size(statistics.median(warmup_ns[-3:])), machine)
        begin = machine.now()
        while not timed.times or not stop.should_stop(MeasuringProgress(timed.times, machine.now() - begin)):
            timed.step()
            if _is_over(machine, deadline):
                time_is_up = f"time was up after {len(timed.times) * timed.group} timed calls"
                return timed.result(len(warmup_ns), time_is_up)
        return timed.result(len(warmup_ns))


class _Timed:
    """Times groups of calls, and looks at the memory of the process after each."""

    def __init__(self, call: TimedCall, group: int, machine: Machine) -> None:
        self.group = group
        self.times: list[float] = []
        self._call = call
        self._machine = machine
        self._times_ns: list[int] = []
        self._memory: list[int] = []

    def step(self) -> None:
        self._times_ns.append(self._call.time(self.group))
        self.times.append(self._times_ns[-1] / (self.group * NANOSECONDS))
        collect_young_garbage()
        memory = self._machine.memory_bytes()
        if memory is not None:
            self._memory.append(memory)

    def result(self, warmup_calls: int, *notes: str) -> MeasuredTimes:
        note = "; ".join([*notes, *self._trends()]) or None
        return MeasuredTimes(tuple(self._times_ns), self.group, warmup_calls, note)

    def _trends(self) -> list[str]:
        calls = len(self.times) * self.group
        notes = []
        factor = slowing(self.times)
        if factor is not None:
            notes.append(
                f"calls get slower and slower: within {calls} calls they came to take {factor:.2f} times as long, so "
                f"this time holds for no later call"
            )
        leaked = leaked_bytes(self._memory)
        if leaked is not None:
            notes.append(
                f"memory is not given back: the process grew by {leaked / 2**20:.0f} MiB in {calls} calls, about "
                f"{leaked / 2**10 / calls:.0f} KiB each"
            )
        return notes


def _progress(times_ns: list[int], seconds: float) -> MeasuringProgress:
    return MeasuringProgress([time / NANOSECONDS for time in times_ns], seconds)


def _is_over(machine: Machine, deadline: float | None) -> bool:
    return deadline is not None and machine.now() >= deadline
