"""What measuring needs to know of the machine: clocks, rest, and how much other processes are in the way."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Protocol

_MICROSECOND = 1e-6
_BUSY_FIELDS = (0, 1, 2, 5, 6, 7)
"""user, nice, system, irq, softirq and steal in the first line of /proc/stat (proc_stat(5)); guest is inside user."""


class Machine(Protocol):
    """Clocks and load of one machine; tests bring a simulated one."""

    def clock_ns(self) -> int:
        """Return the clock that calls are timed with, in nanoseconds."""

    def now(self) -> float:
        """Return the clock that deadlines are written in, in seconds: :func:`time.monotonic` on a real machine."""

    def sleep(self, seconds: float) -> None:
        """Rest for some seconds."""

    def stalled_seconds(self) -> float | None:
        """Return how long, in all, some task had to wait for a core; ``None`` where the kernel does not say."""

    def process_seconds(self) -> float:
        """Return the processor time of this process, all threads together."""

    def busy_core_seconds(self) -> float | None:
        """Return the time that all cores were busy, with whatever, summed up; ``None`` where it is not known."""

    def memory_bytes(self) -> int | None:
        """Return the memory that this process occupies; ``None`` where it is not known."""

    @property
    def num_cores(self) -> int:
        """Number of cores that :meth:`busy_core_seconds` sums over."""


class LocalMachine:
    """The machine that this process runs on.

    Args:
        proc: Folder of the process file system.
    """

    def __init__(self, proc: Path = Path("/proc")) -> None:
        self._pressure = proc / "pressure" / "cpu"
        self._stat = proc / "stat"
        self._memory = proc / "self" / "statm"

    def clock_ns(self) -> int:
        """Return :func:`time.perf_counter_ns`."""
        return time.perf_counter_ns()

    def now(self) -> float:
        """Return :func:`time.monotonic`."""
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        """Rest for some seconds."""
        time.sleep(seconds)

    def stalled_seconds(self) -> float | None:
        """Return the total of the ``some`` line of ``/proc/pressure/cpu`` (Linux, Documentation/accounting/psi.rst)."""
        try:
            lines = self._pressure.read_text().splitlines()
            some = next(line for line in lines if line.startswith("some "))
            return int(some.rpartition("total=")[2]) * _MICROSECOND
        except (OSError, StopIteration, ValueError):
            return None

    def process_seconds(self) -> float:
        """Return :func:`time.process_time`."""
        return time.process_time()

    def busy_core_seconds(self) -> float | None:
        """Return the busy time in ``/proc/stat`` (proc_stat(5)), time that a hypervisor took included."""
        try:
            with self._stat.open() as file:
                ticks = [int(field) for field in file.readline().split()[1:]]
            return sum(ticks[field] for field in _BUSY_FIELDS) / os.sysconf("SC_CLK_TCK")
        except (OSError, ValueError, IndexError, AttributeError):
            return None

    def memory_bytes(self) -> int | None:
        """Return the resident pages in ``/proc/self/statm`` (proc_pid_statm(5)) as bytes."""
        try:
            return int(self._memory.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        except (OSError, ValueError, IndexError, AttributeError):
            return None

    @property
    def num_cores(self) -> int:
        """Number of cores of the machine."""
        return os.cpu_count() or 1


LOCAL_MACHINE = LocalMachine()
