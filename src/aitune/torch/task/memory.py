"""Recognise that memory ran out, and give back what can be given back."""

from __future__ import annotations

import gc

import torch

_PHRASES = (
    "out of memory",
    "can't allocate memory",
    "cannot allocate memory",
    "failed to allocate memory",
    "not enough memory",
    "bad_alloc",
    "bad allocation",
)


def is_out_of_memory(error: BaseException) -> bool:
    """Say whether an error, or one that it was chained to, means that memory ran out.

    Args:
        error: What a call raised.
    """
    current: BaseException | None = error
    while current is not None:
        if isinstance(current, MemoryError | torch.OutOfMemoryError):
            return True
        # Runtimes raise classes of their own, which say it in words alone; KeyError and its like quote data.
        if not isinstance(current, LookupError) and any(phrase in str(current).lower() for phrase in _PHRASES):
            return True
        current = current.__cause__
    return False


def release_memory() -> None:
    """Collect garbage and return cached blocks to the accelerator, after memory ran out."""
    gc.collect()
    if torch.cuda.is_available() and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.empty_cache()
