"""Runs and traces of a module that leave no trace in it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from aitune.torch.module.eval_mode import eval_mode
from aitune.torch.module.preserved_state import preserved_state


@contextmanager
def untouched(module: torch.nn.Module) -> Iterator[None]:
    """Put the module in eval mode without gradients, and put everything back afterwards.

    A trace runs the forward on fake tensors, and a forward that keeps one of them (a table of positions made at the
    first call, say) would be broken by it.

    Args:
        module: The module that is run inside the block.
    """
    with preserved_state(module), eval_mode(module), torch.inference_mode(False), torch.no_grad():
        yield
