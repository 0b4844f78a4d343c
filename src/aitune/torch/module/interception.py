"""Takes over the forward of a module object, wherever that object is held, and leaves no trace behind.

The forward is set as an instance attribute, so hooks run as ever: around it, once a call. Copies of the module, made
by ``copy.copy``, ``copy.deepcopy`` or pickle, are plain: they keep neither the attribute nor a way back to it.
"""

from __future__ import annotations

import copy
import types
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, ClassVar

import torch

from aitune.exceptions import AITuneUserInputError

_ABSENT = object()
_HOOK_ATTRIBUTES = (
    "_forward_hooks",
    "_forward_hooks_with_kwargs",
    "_forward_hooks_always_called",
    "_forward_pre_hooks",
    "_forward_pre_hooks_with_kwargs",
    "_backward_hooks",
    "_backward_pre_hooks",
)


class Placed:
    """Something that was put into a module's ``__dict__``; a copy of it is what a plain module has in its place."""

    attribute: ClassVar[str]

    def __init__(self, interception: Interception) -> None:
        self.interception = interception

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        # Reached only when a module class copies its __dict__ itself.
        return self.interception.plain_attribute(self.attribute, memo)

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise AITuneUserInputError(
            f"a {type(self.interception.module).__qualname__} that is wrapped cannot be pickled, because its class "
            f"writes down all its attributes; use ait.save(module, path) for the tuned module, or pickle "
            f"module.unwrap() for the plain one"
        )


class InterceptedForward(Placed):
    """What stands in for a module's forward; subclasses define ``__call__``.

    Args:
        interception: The interception that it belongs to.
    """

    attribute = "forward"

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        """Run the original forward."""
        return self.interception.original_forward(*args, **kwargs)

    @property
    def __globals__(self) -> dict[str, Any]:
        """Refused: torch.jit.script asks for it, and would then read the source of a function that there is none of."""
        raise AttributeError(
            f"the forward of a {type(self.interception.module).__qualname__} that is wrapped by aitune has no source: "
            f"unwrap it before torch.jit.script (module.unwrap())"
        )


class _PlainState(Placed):
    """Stands in for ``__getstate__``: the state without what was put on the module."""

    attribute = "__getstate__"

    def __call__(self) -> Any:
        module = self.interception.module
        state: Any = _state_of(module)
        return self.interception.strip(dict(state)) if isinstance(state, dict) else state


class _NoReplica(Placed):
    """Refuses replicas: they share everything but the weights, and would be answered with the wrong ones."""

    attribute = "_replicate_for_data_parallel"

    def __call__(self) -> Any:
        raise AITuneUserInputError(
            f"a {type(self.interception.module).__qualname__} that is wrapped by aitune cannot be replicated by "
            f"nn.DataParallel; unwrap it first (module.unwrap()), or run one process per device"
        )


_PLACED: tuple[type[Placed], ...] = (InterceptedForward, _PlainState, _NoReplica)


def _state_of(module: torch.nn.Module) -> Any:
    # Python 3.10 has no object.__getstate__.
    own = getattr(type(module), "__getstate__", None)
    return module.__dict__ if own is None else own(module)


class Interception:
    """The hold on one module's forward.

    Args:
        module: The module; changed only in its instance ``__dict__``, until :meth:`remove`.
    """

    def __init__(self, module: torch.nn.Module) -> None:
        self.module = module
        self.wrapper: Any = None
        self._before = {placed.attribute: module.__dict__.get(placed.attribute, _ABSENT) for placed in _PLACED}
        self.original_forward: Callable[..., Any] = module.forward
        for placed in _PLACED:
            module.__dict__[placed.attribute] = placed(self)

    @property
    def forward_before(self) -> Any:
        """The instance attribute ``forward`` that the module had of its own, ``None`` when it had none."""
        before = self._before["forward"]
        return None if before is _ABSENT else before

    def redirect(self, forward: InterceptedForward) -> None:
        """Let calls of the module run ``forward`` from now on."""
        self.module.__dict__["forward"] = forward

    def pass_through(self) -> None:
        """Let calls of the module run the original forward from now on."""
        self.redirect(InterceptedForward(self))

    def remove(self) -> None:
        """Put the module's ``__dict__`` back as it was; what somebody else set meanwhile stays."""
        self.strip(self.module.__dict__)

    def strip(self, state: dict[str, Any]) -> dict[str, Any]:
        """Return a module's state with what was put on it taken out again.

        Args:
            state: The attributes by name; changed in place.
        """
        for name, before in self._before.items():
            if isinstance(state.get(name), Placed):
                if before is _ABSENT:
                    del state[name]
                else:
                    state[name] = before
        return state

    def plain_attribute(self, name: str, memo: dict[int, Any]) -> Any:
        """Return what a deep copy of the module has in place of something that was put on it.

        Args:
            name: Name of the attribute.
            memo: The copies made so far, as ``copy.deepcopy`` keeps them.
        """
        before = self._before[name]
        if before is not _ABSENT:
            return copy.deepcopy(before, memo)
        copied = memo.get(id(self.module), self.module)
        return types.MethodType(getattr(type(self.module), name, _state_of), copied)

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
