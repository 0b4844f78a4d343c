"""Modules in eval mode for a while, whatever mode their parts are in."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def eval_mode(module: torch.nn.Module) -> Iterator[None]:
    """Put a module and its parts into eval mode inside a ``with`` block, and each back into its own mode after it.

    Args:
        module: The module.
    """
    training = [part for part in module.modules() if part.training]
    # Not .eval(), which a module may define for itself.
    for part in training:
        part.training = False
    try:
        yield
    finally:
        for part in training:
            part.training = True
