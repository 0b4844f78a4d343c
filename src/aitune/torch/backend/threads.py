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
