"""How many threads a backend of its own thread pool may use."""

from __future__ import annotations

import torch

from aitune.torch.config import config


def thread_budget(num_threads: int | None) -> int:
    """Return the number of threads for one call: as configured for the backend, for the library, or by torch.

    Args:
        num_threads: What the backend's configuration says.
    """
    return num_threads or config.num_threads or torch.get_num_threads()


def thread_counts(most: int) -> tuple[int, ...]:
    """Return the numbers of threads that are worth trying: all of them, half, and one.

    A small model is often fastest with one thread, and a runtime's own threads may get in each other's way.

    Args:
        most: The budget, at least 1.
    """
    return tuple(sorted({most, max(most // 2, 1), 1}, reverse=True))
