"""Blocks of calls: the unit of a comparison, because calls that follow each other are not independent."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from aitune.torch.module.sample import Sample
from aitune.torch.task.machine import Machine
from aitune.torch.task.timed_call import NANOSECONDS, TimedCall, Timer, collect_young_garbage

_WARMUP_CALLS = 3
_WARMUP_SECONDS = 0.3

_LONG_CALL_SECONDS = 0.5
"""From here on no call of a block is discarded: what the first one takes longer (1 to 2 ms) no longer shows, and the
time is better spent on further pairs."""

_STALL_SHARE = 0.02
"""A block in which some task waited for a core for more than this share of its time was disturbed."""

_BUSY_SHARE = 0.95
"""Without the kernel's word: so was one that got less than this share of the processor time of its own best block."""


@dataclass(frozen=True)
class Contestant:
    """One callable of a comparison.

    Args:
        key: What identifies it in the result.
        infer: What is called.
        sample: Arguments of every call.
        samples_per_call: Samples in a call; times are compared per sample, so batch sizes may differ.
        copy_inputs: Whether each call gets a copy of the arguments, because it may change them.
        name: What people call it; ``None`` takes the key.
    """

    key: str
    infer: Callable[..., Any]
    sample: Sample
    samples_per_call: int = 1
    copy_inputs: bool = False
    name: str | None = None

    @property
    def display_name(self) -> str:
        """What people call it."""
        return self.key if self.name is None else self.name


@dataclass(frozen=True)
class Block:
    """Calls of one contestant, timed one after the other.

    Args:
        seconds: Median time of a call, per sample.
        calls: Calls that were timed.
        stalled_share: Share of the block in which some task waited for a core; ``None`` where it is not known.
        busy_share: Processor time of this process over the time of the block.
    """

    seconds: float
    calls: int
    stalled_share: float | None = None
    busy_share: float = 1.0


def is_disturbed(block: Block, best_busy_share: float) -> bool:
    """Say whether other processes took cores away during a block.

    Args:
        block: The block.
        best_busy_share: Largest ``busy_share`` of the blocks of the same contestant.
    """
    if block.stalled_share is not None:
        return block.stalled_share > _STALL_SHARE
    return block.busy_share < _BUSY_SHARE * best_busy_share


def undisturbed(blocks: Iterable[Block]) -> list[bool]:
    """Say for each block of one contestant whether it was left alone.

    Args:
        blocks: The blocks, in order.
    """
    listed = list(blocks)
    best = max((block.busy_share for block in listed), default=0.0)
    return [not is_disturbed(block, best) for block in listed]


class BlockRunner:
    """Runs blocks of one contestant.

    Args:
        contestant: What is called.
        timer: What times it.
        machine: Whose load is read.
        block_seconds: Length of a block; it holds one call at least.
        pause_seconds: Rest before a block, in which spinning threads of the contestant before come to rest.
    """

    def __init__(
        self, contestant: Contestant, timer: Timer, machine: Machine, block_seconds: float, pause_seconds: float
    ) -> None:
        self.contestant = contestant
        self._call = TimedCall(contestant.infer, contestant.sample, timer, contestant.copy_inputs)
        self._machine = machine
        self._block_seconds = block_seconds
        self._pause_seconds = pause_seconds
        self._group = 1
        self._discards_first = True
        self.expected_seconds = 0.0

    def warm_up(self) -> Block | None:
        """Pause, make a few calls, one if it is long, and learn how long a call takes.

        Returns:
            A block when the call is a long one: it is too dear to be thrown away.
        """
        self._machine.sleep(self._pause_seconds)
        reading = _Reading(self._machine)
        begin = self._machine.now()
        times: list[int] = []
        while not times or (len(times) < _WARMUP_CALLS and self._machine.now() - begin < _WARMUP_SECONDS):
            times.append(self._call.time())
        call_ns = min(times)
        self._group = self._call.group_size(call_ns)
        call_seconds = call_ns / NANOSECONDS
        self._discards_first = call_seconds < _LONG_CALL_SECONDS
        calls_seconds = max(self._block_seconds, call_seconds) + (call_seconds if self._discards_first else 0.0)
        self.expected_seconds = self._pause_seconds + calls_seconds
        return None if self._discards_first else self._block(times, reading)

    def run(self) -> Block:
        """Pause, discard one call unless calls are long, then time calls for the length of a block."""
        machine = self._machine
        collect_young_garbage()
        begin = machine.now()
        machine.sleep(self._pause_seconds)
        if self._discards_first:
            # The first call after a switch finds cold caches and sleeping threads.
            self._call.time()
        reading = _Reading(machine)
        times: list[int] = []
        while not times or reading.elapsed() < self._block_seconds:
            times.append(self._call.time(self._group))
        block = self._block(times, reading)
        self.expected_seconds = machine.now() - begin
        return block

    def _block(self, times: list[int], reading: _Reading) -> Block:
        per_sample = statistics.median(times) / (self._group * self.contestant.samples_per_call * NANOSECONDS)
        return Block(per_sample, len(times) * self._group, reading.stalled_share(), reading.busy_share())


class _Reading:
    """What the machine says at the beginning of a block, and how far it went on since."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._stalled = machine.stalled_seconds()
        self._busy = machine.process_seconds()
        self._start_ns = machine.clock_ns()

    def elapsed(self) -> float:
        return (self._machine.clock_ns() - self._start_ns) / NANOSECONDS

    def busy_share(self) -> float:
        return (self._machine.process_seconds() - self._busy) / self.elapsed()

    def stalled_share(self) -> float | None:
        stalled = self._machine.stalled_seconds()
        if stalled is None or self._stalled is None:
            return None
        return (stalled - self._stalled) / self.elapsed()
