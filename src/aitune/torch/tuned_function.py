"""The function that ``ait.tune`` runs: whether calling it runs anything, and what to say where it tunes nothing."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from aitune.exceptions import AITuneError, AITuneUserInputError
from aitune.torch.data import Batch
from aitune.torch.module.recording_module import RecordingModule
from aitune.torch.module.registry import module_registry
from aitune.torch.module.wrapper_module import Module
from aitune.torch.tune_arguments import check_values

_ASYNC = (
    "calling it runs nothing until it is awaited; give a function that runs it to its end, such as "
    "lambda *args, **kwargs: asyncio.run(func(*args, **kwargs))"
)
_GENERATOR = (
    "calling it runs nothing until it is gone through; give a function that goes through it, such as "
    "lambda *args, **kwargs: list(func(*args, **kwargs))"
)


def check_function(func: Any) -> None:
    """Make sure that calling a function runs it.

    Args:
        func: What ``ait.tune`` was given.

    Raises:
        AITuneUserInputError: It cannot be called, or a call only makes what is to be awaited or gone through.
    """
    if not callable(func):
        raise AITuneUserInputError(
            f"func must be callable, got {func!r}; give a wrapped module or a function that calls it"
        )
    called = func
    while isinstance(called, functools.partial):
        called = called.func
    for code in (called, inspect.getattr_static(type(called), "__call__")):
        if inspect.iscoroutinefunction(code):
            raise AITuneUserInputError(f"func {_name(called)} is a coroutine function (async def): {_ASYNC}")
        if inspect.isgeneratorfunction(code) or inspect.isasyncgenfunction(code):
            raise AITuneUserInputError(f"func {_name(called)} is a generator function (it yields): {_GENERATOR}")


def run_on_batch(func: Callable[..., Any], batch: Batch, modules: Sequence[Module]) -> None:
    """Run a function on a batch, without gradients; recording modules count their calls for its size.

    Args:
        func: The function.
        batch: Its arguments.
        modules: Those that are to be tuned.

    Raises:
        AITuneUserInputError: The function raises, or returns something that is yet to be awaited.
    """
    recordings = [module.module for module in modules if isinstance(module.module, RecordingModule)]
    before = [recording.num_calls for recording in recordings]
    try:
        with torch.no_grad(), _batch_size_of(recordings, batch.batch_size):
            output = func(*batch.args, **batch.kwargs)
    except AITuneError:
        raise
    except Exception as error:
        for module in modules:
            # One that was not reached cannot be at fault.
            if any(r is module.module and r.num_calls > n for r, n in zip(recordings, before, strict=True)):
                check_values(module.name, module.original)
        raise _raised(batch, error) from error
    if inspect.iscoroutine(output):
        output.close()  # or Python warns that it was never awaited
        raise AITuneUserInputError(f"func {_name(func)} returned a coroutine: {_ASYNC}")


def _raised(batch: Batch, error: Exception) -> AITuneUserInputError:
    given = ", ".join([*(type(arg).__name__ for arg in batch.args), *(f"{key}=..." for key in batch.kwargs)])
    return AITuneUserInputError(
        f"func raised {type(error).__name__}: {error}; it was called as func({given}) on a batch of "
        f"{batch.batch_size}; run it by hand on such a batch, and see how a dataset becomes arguments"
    )


@contextmanager
def _batch_size_of(recordings: Sequence[RecordingModule], batch_size: int) -> Iterator[None]:
    """Let calls count for a batch size in every thread: a function may call its modules from a pool."""
    for recording in recordings:
        recording.batch_size = batch_size
    try:
        yield
    finally:
        for recording in recordings:
            recording.batch_size = None


def advice_for_uncalled(func: Any) -> str:
    """Name the module that a function is or is a method of, where neither that one nor a part of it is wrapped.

    Args:
        func: What ``ait.tune`` was given.

    Returns:
        The end of a sentence, empty where nothing is known.
    """
    owner = func if isinstance(func, torch.nn.Module) else getattr(func, "__self__", None)
    if isinstance(owner, Module) or not isinstance(owner, torch.nn.Module):
        return ""
    if any(module_registry().wrapper_of(part) is not None for part in owner.modules()):
        return ""
    what = "func is" if owner is func else "func is a method of"
    return f"; {what} a {type(owner).__name__} that is not wrapped: wrap it with ait.Module to tune it"


def why_nothing_was_done(func: Callable[..., Any], batch: Batch, tuned: Sequence[Module]) -> str:
    """Say why there is nothing to do where every wrapped module is tuned already, from one run of the function.

    Args:
        func: What ``ait.tune`` was given.
        batch: A batch for it.
        tuned: The tuned modules.

    Raises:
        AITuneUserInputError: As :func:`run_on_batch`.
    """
    before = [module.stats().total for module in tuned]
    run_on_batch(func, batch, ())
    if all(module.stats().total == count for module, count in zip(tuned, before, strict=True)):
        advice = advice_for_uncalled(func) or "; wrap the module that it runs with ait.Module to tune it"
        names = ", ".join(module.name for module in tuned)
        return (
            f"func calls no wrapped module that is not tuned yet, nor one that is ({names}): nothing was done{advice}"
        )
    return "every wrapped module is tuned already: nothing was done; give retune=True to tune again"


def _name(func: Any) -> str:
    return getattr(func, "__qualname__", None) or type(func).__name__
