"""At which batch sizes candidates are profiled."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from aitune.torch.task.profiling.config import ProfilingConfig

_LEAST_STEP = 0.2
"""Share of the best batch size; throughput hardly changes within less."""


def plan_profiling(
    given: ProfilingConfig | None, named: Sequence[int] | None, batching: bool, max_batch_size: int
) -> ProfilingConfig:
    """Return how candidates of a graph are profiled.

    Args:
        given: What the user set; its batch sizes come first.
        named: Batch sizes that the user tunes for; ``None`` takes powers of two up to the largest.
        batching: Whether the graph can be called with different batch sizes.
        max_batch_size: Largest batch size that may be measured; larger ones are left out.
    """
    sizes: Sequence[int] = named or powers_of_two(1, max_batch_size)
    if given is not None:
        sizes = sorted(given.batch_sizes)
    allowed = [size for size in sizes if size <= max_batch_size] or [max_batch_size]
    allowed = allowed if batching else allowed[:1]
    if given is not None:
        return replace(given, batch_sizes=allowed, batching=batching and given.batching)
    return ProfilingConfig(allowed, batching)


def powers_of_two(first: int, last: int) -> list[int]:
    """Return the first batch size doubled until it would exceed the last, and the last.

    Args:
        first: Smallest batch size.
        last: Largest batch size, at least the smallest.
    """
    sizes = [first]
    while sizes[-1] * 2 <= last:
        sizes.append(sizes[-1] * 2)
    return sizes if sizes[-1] == last else [*sizes, last]


def between_neighbours(best: int, measured: Sequence[int]) -> list[int]:
    """Return the batch sizes half way from the best one to the measured ones beside it, where that is a step.

    Args:
        best: The best batch size.
        measured: All that were measured, the best among them.
    """
    below = max((size for size in measured if size < best), default=best)
    above = min((size for size in measured if size > best), default=best)
    middles = {(below + best) // 2, (best + above) // 2}
    return sorted(size for size in middles if size not in measured and abs(size - best) >= _LEAST_STEP * best)
