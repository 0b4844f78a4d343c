"""Takes over the forward of a module object, wherever that object is held, and leaves no trace behind.

The forward is set as an instance attribute, so hooks run as ever: around it, once a call. Copies of the module, made
by ``copy.copy``, ``copy.deepcopy`` or pickle, are plain: they keep neither the attribute nor a way back to it.
"""

from __future__ import annotations

import copy
import types
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import torch

_ABSENT = object()
_OWN_ATTRIBUTES = ("forward", "__getstate__", "_replicate_for_data_parallel")
_HOOK_ATTRIBUTES = (
    "_forward_hooks",
    "_forward_hooks_with_kwargs",
    "_forward_hooks_always_called",
    "_forward_pre_hooks",
    "_forward_pre_hooks_with_kwargs",
    "_backward_hooks",
    "_backward_pre_hooks",
)


class InterceptedForward:
    """What stands in for a module's forward; subclasses define ``__call__``.

    Args:
        interception: The interception that it belongs to.
    """

    def __init__(self, interception: Interception) -> None:
        self.interception = interception

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the original forward."""
        return self.interception.original_forward(*args, **kwargs)

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        # Reached only when a module class copies its __dict__ itself; the copy then gets a plain forward of its own.
        module = self.interception.module
        copied = memo.get(id(module), module)
        return types.MethodType(type(module).forward, copied)


class _PlainState:
    """Stands in for ``__getstate__``: the state without what was put on the module."""

    def __init__(self, interception: Interception) -> None:
        self.interception = interception

    def __call__(self) -> Any:
        module = self.interception.module
        state: Any = type(module).__getstate__(module)  # type: ignore[no-untyped-call]
        return self.interception.strip(dict(state)) if isinstance(state, dict) else state

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        module = self.interception.module
        return types.MethodType(type(module).__getstate__, memo.get(id(module), module))


class _NoReplica:
    """Refuses replicas: they share everything but the weights, and would be answered with the wrong ones."""

    def __init__(self, interception: Interception) -> None:
        self.interception = interception

    def __call__(self) -> Any:
        raise RuntimeError(
            "a module wrapped by aitune cannot be replicated by nn.DataParallel; unwrap it first (module.unwrap()), "
            "or run one process per device"
        )

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        module = self.interception.module
        return types.MethodType(type(module)._replicate_for_data_parallel, memo.get(id(module), module))


class Interception:
    """The hold on one module's forward.

    Args:
        module: The module; changed only in its instance ``__dict__``, until :meth:`remove`.
    """

    def __init__(self, module: torch.nn.Module) -> None:
        self.module = module
        self.wrapper: Any = None
        self._before = {name: module.__dict__.get(name, _ABSENT) for name in _OWN_ATTRIBUTES}
        self.original_forward: Callable[..., Any] = module.forward
        self.pass_through()
        module.__dict__["__getstate__"] = _PlainState(self)
        module.__dict__["_replicate_for_data_parallel"] = _NoReplica(self)

    def redirect(self, forward: InterceptedForward) -> None:
        """Let calls of the module run ``forward`` from now on."""
        self.module.__dict__["forward"] = forward

    def pass_through(self) -> None:
        """Let calls of the module run the original forward from now on."""
        self.redirect(InterceptedForward(self))

    def remove(self) -> None:
        """Put the module's ``__dict__`` back as it was; what somebody else set meanwhile stays."""
        current = self.module.__dict__
        for name, before in self._before.items():
            if isinstance(current.get(name), InterceptedForward | _PlainState | _NoReplica):
                if before is _ABSENT:
                    del current[name]
                else:
                    current[name] = before

    def strip(self, state: dict[str, Any]) -> dict[str, Any]:
        """Return a module's state with what was put on it taken out again."""
        for name, before in self._before.items():
            if isinstance(state.get(name), InterceptedForward | _PlainState | _NoReplica):
                if before is _ABSENT:
                    del state[name]
                else:
                    state[name] = before
        return state

    def plain_view(self) -> torch.nn.Module:
        """Return a module of the same class that shares weights, buffers and submodules but not the forward hooks.

        It is what is exported, compiled and measured: hooks go on running around the tuned forward, so they must not
        be compiled into it as well.
        """
        view = copy.copy(self.module)
        for name in _HOOK_ATTRIBUTES:
            if name in view.__dict__:
                view.__dict__[name] = OrderedDict()
        return view
