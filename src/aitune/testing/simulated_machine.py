"""A machine whose time is made up, so that tests of measurements are exact, fast, and the same on every computer."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

NANOSECONDS = 1_000_000_000


@dataclass(frozen=True)
class Noise:
    """How the speed of a simulated machine varies.

    Args:
        skew: Scale of a long right tail on every call, as a share of its time.
        drift: Standard deviation, as a logarithm, of a slow common change of speed.
        drift_seconds: Time in which the drift forgets where it was.
        burst_every: Mean seconds between bursts of another process; 0 for none.
        burst_seconds: Mean length of a burst.
        burst_slowdown: Factor on the time of a call inside a burst.
    """

    skew: float = 0.0
    drift: float = 0.0
    drift_seconds: float = 1.0
    burst_every: float = 0.0
    burst_seconds: float = 0.5
    burst_slowdown: float = 2.0


QUIET = Noise()
TYPICAL = Noise(skew=0.03, drift=0.02)
BUSY = Noise(skew=0.05, drift=0.05, burst_every=2.0)


class SimulatedMachine:
    """Implements :class:`aitune.torch.task.machine.Machine`; time passes only when something is simulated to take it.

    Args:
        noise: How its speed varies.
        seed: Seed of the variation.
        reports_pressure: Whether the kernel says how long tasks waited for a core.
    """

    num_cores = 2

    def __init__(self, noise: Noise = QUIET, seed: int = 0, reports_pressure: bool = True) -> None:
        self._noise = noise
        self._random = random.Random(seed)
        self._reports_pressure = reports_pressure
        self._time_ns = 1_000 * NANOSECONDS
        self._stalled = 0.0
        self._own = 0.0
        self.occupied_bytes = 100 * 2**20
        self._level = self._random.gauss(0.0, noise.drift)
        self._burst_ends = 0.0
        self._next_burst = self._draw_next_burst()

    def clock_ns(self) -> int:
        """Return the simulated time."""
        return self._time_ns

    def now(self) -> float:
        """Return the simulated time in seconds."""
        return self._time_ns / NANOSECONDS

    def sleep(self, seconds: float) -> None:
        """Let time pass."""
        self._pass(seconds)

    def stalled_seconds(self) -> float | None:
        """Return how long bursts were in the way of calls."""
        return self._stalled if self._reports_pressure else None

    def process_seconds(self) -> float:
        """Return the processor time that calls got."""
        return self._own

    def busy_core_seconds(self) -> float | None:
        """Return the processor time that calls and bursts got."""
        return self._own + self._stalled

    def memory_bytes(self) -> int | None:
        """Return ``occupied_bytes``, which what is simulated may change."""
        return self.occupied_bytes

    def work(self, seconds: float) -> None:
        """Spend the time of one call.

        Args:
            seconds: What it takes on a quiet machine; drift, tail and bursts are added.
        """
        noise = self._noise
        taken = seconds * math.exp(self._level)
        if noise.skew:
            taken *= 1.0 + noise.skew * self._random.expovariate(1.0)
        if self._is_in_burst():
            self._stalled += taken * (noise.burst_slowdown - 1.0)
            self._own += taken
            taken *= noise.burst_slowdown
        else:
            self._own += taken
        self._pass(taken)

    def callable(self, seconds: float | Callable[[int], float]) -> Callable[..., Any]:
        """Return something to call that takes simulated time.

        Args:
            seconds: Time of a call, or a function from the number of the call (0, 1, ...) to it.
        """
        calls = 0

        def infer(*args: Any, **kwargs: Any) -> None:
            nonlocal calls
            self.work(seconds(calls) if callable(seconds) else seconds)
            calls += 1

        return infer

    def _pass(self, seconds: float) -> None:
        self._time_ns += round(seconds * NANOSECONDS)
        noise = self._noise
        if noise.drift:
            kept = math.exp(-seconds / noise.drift_seconds)
            self._level = kept * self._level + self._random.gauss(0.0, noise.drift * math.sqrt(1.0 - kept * kept))

    def _is_in_burst(self) -> bool:
        now = self.now()
        while now >= self._next_burst:
            self._burst_ends = self._next_burst + self._random.expovariate(1.0 / self._noise.burst_seconds)
            self._next_burst = self._burst_ends + self._draw_gap()
        return now < self._burst_ends

    def _draw_next_burst(self) -> float:
        return self.now() + self._draw_gap()

    def _draw_gap(self) -> float:
        every = self._noise.burst_every
        return self._random.expovariate(1.0 / every) if every else math.inf
