"""The wrapped modules of this process, weakly held: the ones a tune call looks at."""

from __future__ import annotations

import gc
import logging
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING

import torch

from aitune.exceptions import AITuneUserInputError

if TYPE_CHECKING:
    from aitune.torch.module.wrapper_module import Module

logger = logging.getLogger(__name__)

_run_of_this_context: ContextVar[object | None] = ContextVar("aitune_run_of_this_context", default=None)


class ModuleRegistry:
    """Wrapped modules by name and by the object they wrap."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._run_lock = threading.Lock()
        self._run: object | None = None
        self._by_name: weakref.WeakValueDictionary[str, Module] = weakref.WeakValueDictionary()
        # Keyed by id: a wrapper holds its module, so an id is not used again while its entry lives.
        self._by_module: weakref.WeakValueDictionary[int, Module] = weakref.WeakValueDictionary()

    def add(self, name: str, module: torch.nn.Module, wrapper: Module) -> None:
        """Enter a wrapper, under this name alone; one that another living one has passes to this one, with a warning.

        Args:
            name: Name of the wrapper.
            module: The module that it wraps.
            wrapper: The wrapper.
        """
        if self._by_name.get(name, wrapper) is not wrapper:
            # A wrapper and its module refer to each other: a dropped pair stays until the collector has passed.
            gc.collect()
        with self._lock:
            for known in [known for known, other in self._by_name.items() if other is wrapper]:
                del self._by_name[known]
            if name in self._by_name:
                logger.warning(
                    "the name %r of a wrapped module passes to a newer one; the older one stays as it is but is not "
                    "found by that name any more; give each module its own name",
                    name,
                )
            self._by_name[name] = wrapper
            self._by_module[id(module)] = wrapper

    def remove(self, name: str, module: torch.nn.Module) -> None:
        """Forget a wrapper."""
        with self._lock:
            wrapper = self._by_module.pop(id(module), None)
            if wrapper is not None and self._by_name.get(name) is wrapper:
                del self._by_name[name]

    def wrapper_of(self, module: torch.nn.Module) -> Module | None:
        """Return the wrapper of a module, if it has one."""
        return self._by_module.get(id(module))

    def modules(self) -> list[Module]:
        """Return the living wrappers in the order in which they were made."""
        with self._lock:
            return [wrapper for wrapper in list(self._by_module.values()) if wrapper is not None]

    def unused_name(self, wanted: str) -> str:
        """Return ``wanted``, with a number behind it when a living wrapper has that name."""
        if wanted not in self._by_name:
            return wanted
        gc.collect()
        numbered = (f"{wanted}_{number}" for number in range(1, 1_000_000))
        return wanted if wanted not in self._by_name else next(name for name in numbered if name not in self._by_name)

    @contextmanager
    def one_run_at_a_time(self) -> Iterator[None]:
        """Hold the modules for one run: a second thread waits, because what two runs measure at once would be untrue.

        Raises:
            AITuneUserInputError: This is called inside the run itself, which would wait for itself for ever.
        """
        run = _run_of_this_context.get()
        if run is not None and run is self._run:
            raise AITuneUserInputError(
                "ait.tune was called inside the function that ait.tune is running; call it once, on the outermost "
                "function: every wrapped module that is called below is tuned"
            )
        if not self._run_lock.acquire(blocking=False):
            logger.info("another thread is tuning; this call of ait.tune waits until that one has ended")
            self._run_lock.acquire()
        self._run = object()
        token = _run_of_this_context.set(self._run)
        try:
            yield
        finally:
            self._run = None
            _run_of_this_context.reset(token)
            self._run_lock.release()


_current = ModuleRegistry()


def module_registry() -> ModuleRegistry:
    """Return the registry that holds now."""
    return _current


@contextmanager
def fresh_module_registry() -> Iterator[ModuleRegistry]:
    """Use an empty registry inside the ``with`` block."""
    global _current  # noqa: PLW0603 - one of the three pieces of state that the architecture names
    before, _current = _current, ModuleRegistry()
    try:
        yield _current
    finally:
        _current = before
