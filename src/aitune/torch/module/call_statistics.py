"""How many calls of a tuned module were served by which backend, and how many fell back, and why."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class CallStatistics:
    """Counts of the calls since tuning.

    Args:
        served: Calls answered by the chosen backend, by graph name.
        fallbacks: Calls answered by the original module, by cause.
    """

    served: dict[str, int]
    fallbacks: dict[str, int]

    @property
    def total(self) -> int:
        """All calls."""
        return sum(self.served.values()) + sum(self.fallbacks.values())

    @property
    def share_served(self) -> float:
        """Share of the calls that a backend answered; 1.0 when there were none."""
        return sum(self.served.values()) / self.total if self.total else 1.0


class _ThreadCounts(threading.local):
    """A list of counters for each thread, made when the thread first asks."""

    def __init__(self, counters: CallCounters) -> None:
        self.values = counters._new_thread()
        self.token = _Token()
        # A weak reference: a strong one would keep the counters, and with them this very object, alive for ever.
        weakref.finalize(self.token, _fold, weakref.ref(counters), self.values)


class _Token:
    """Dies with its thread."""


def _fold(reference: weakref.ref[CallCounters], values: list[int]) -> None:
    counters = reference()
    if counters is not None:
        counters._fold(values)


class CallCounters:
    """Counters that threads write without a lock and that are summed when read.

    Args:
        names: One name for each counter.
    """

    def __init__(self, names: Sequence[str]) -> None:
        self._names = tuple(names)
        # Reentrant: the counts of an ended thread may be folded by a collection that starts inside the lock.
        self._lock = threading.RLock()
        self._ended = [0] * len(self._names)
        self._living: list[list[int]] = []
        self.local = _ThreadCounts(self)

    def _new_thread(self) -> list[int]:
        values = [0] * len(self._names)
        with self._lock:
            self._living.append(values)
        return values

    def _fold(self, values: list[int]) -> None:
        with self._lock:
            self._ended = [a + b for a, b in zip(self._ended, values, strict=True)]
            self._living = [other for other in self._living if other is not values]

    def read(self) -> dict[str, int]:
        """Return the sums by name."""
        with self._lock:
            columns = [self._ended, *self._living]
            sums = [sum(column) for column in zip(*columns, strict=True)]
        return dict(zip(self._names, sums, strict=True))
