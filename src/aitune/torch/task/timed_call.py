"""One callable with the inputs of its calls and the clock that times it."""

from __future__ import annotations

import gc
import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import repeat
from typing import Any, Protocol

import torch
from torch.utils import _pytree as pytree

from aitune.torch.module.sample import Sample
from aitune.torch.task.machine import Machine

NANOSECONDS = 1_000_000_000

_SHORT_CALL_NS = 50_000
"""Below this a single reading is not trusted: the clock and the loop around the call would be part of the figure."""

_GROUP_NS = 200_000
_LARGEST_GROUP = 1000
_LARGEST_COPIED_GROUP = 100


class Timer(Protocol):
    """Times calls on one kind of device."""

    def time(self, infer: Callable[..., Any], calls: Iterable[Sample]) -> int:
        """Run the calls one after the other and return the nanoseconds that they took together, at least 1."""


class HostTimer:
    """Times calls that are done when they return.

    Args:
        machine: Whose clock is read.
    """

    def __init__(self, machine: Machine) -> None:
        self._clock_ns = machine.clock_ns

    def time(self, infer: Callable[..., Any], calls: Iterable[Sample]) -> int:
        """Run the calls one after the other and return the nanoseconds that they took together, at least 1."""
        clock_ns = self._clock_ns
        start = clock_ns()
        for args, kwargs in calls:
            infer(*args, **kwargs)
        return max(clock_ns() - start, 1)


class CudaTimer:
    """Times calls that are queued on a CUDA device, with events on its current stream.

    Args:
        device: The device.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def time(self, infer: Callable[..., Any], calls: Iterable[Sample]) -> int:
        """Run the calls one after the other and return the nanoseconds that they took together, at least 1."""
        with torch.cuda.device(self._device):
            begin = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
            end = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
            # Copies of inputs, and whatever was queued before, must not be part of the figure.
            torch.cuda.synchronize(self._device)
            begin.record()
            for args, kwargs in calls:
                infer(*args, **kwargs)
            end.record()
            end.synchronize()
            milliseconds = float(begin.elapsed_time(end))
            return max(round(milliseconds * 1e6), 1)


def timer_for(device: torch.device | str, machine: Machine) -> Timer:
    """Return the timer that fits a device: events on CUDA, the machine's clock elsewhere.

    Args:
        device: Where the calls run.
        machine: Whose clock is read on a host device.
    """
    resolved = torch.device(device)
    return CudaTimer(resolved) if resolved.type == "cuda" else HostTimer(machine)


class TimedCall:
    """A callable that can be timed again and again with the same inputs.

    Args:
        infer: What is called.
        sample: Arguments of every call.
        timer: What times it.
        copy_inputs: Whether each call gets a copy of the arguments, because it may change them; copies are made
            outside the timed region.

    Attributes:
        calls: Calls that were made without raising; of calls that are timed together either all count or none.
    """

    def __init__(self, infer: Callable[..., Any], sample: Sample, timer: Timer, copy_inputs: bool = False) -> None:
        self._infer = infer
        self._sample = sample
        self._timer = timer
        self._copy_inputs = copy_inputs
        self.calls = 0

    def time(self, num_calls: int = 1) -> int:
        """Run some calls one after the other and return the nanoseconds that they took together.

        Args:
            num_calls: How many, at least 1.
        """
        calls: Iterable[Sample] = repeat(self._sample, num_calls)
        if self._copy_inputs:
            calls = [copy_sample(sample) for sample in calls]
        taken = self._timer.time(self._infer, calls)
        self.calls += num_calls
        return taken

    def group_size(self, call_ns: float) -> int:
        """Return how many calls should be timed together: 1, or more where one call is shorter than 50 µs.

        Args:
            call_ns: Nanoseconds of one call.
        """
        if call_ns >= _SHORT_CALL_NS:
            return 1
        largest = _LARGEST_COPIED_GROUP if self._copy_inputs else _LARGEST_GROUP
        return min(math.ceil(_GROUP_NS / max(call_ns, 1.0)), largest)


def copy_sample(sample: Sample) -> Sample:
    """Copy the tensors of a call, and the containers around them; one tensor given twice stays one tensor.

    Args:
        sample: Arguments of a call.
    """
    copies: dict[int, torch.Tensor] = {}

    def copied(leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor):
            return leaf
        if id(leaf) not in copies:
            copies[id(leaf)] = leaf.detach().clone().requires_grad_(leaf.requires_grad)
        return copies[id(leaf)]

    args, kwargs = pytree.tree_map(copied, (tuple(sample.args), dict(sample.kwargs)))
    return Sample(args, kwargs)


@contextmanager
def measuring_conditions() -> Iterator[None]:
    """Keep the garbage collector and autograd out of what is timed; both are as before at the end.

    Gradients are off because a tuned module is for inference: with them on the original would look slower than it is.
    """
    was_enabled = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        with torch.no_grad():
            yield
    finally:
        if was_enabled:
            gc.enable()


def collect_young_garbage() -> None:
    """Free cycles made since the last time, between timed regions: cheap, and memory does not grow with every call."""
    gc.collect(0)
