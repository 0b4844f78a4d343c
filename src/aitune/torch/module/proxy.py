"""An object that answers as a module does: its attributes, its operators, its class, its copies."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any, ClassVar

import torch

from aitune.exceptions import AITuneUserInputError

# Methods of nn.Module that return the module itself; through a proxy they return the proxy.
_RETURN_SELF = frozenset(
    {
        "to", "eval", "train", "cuda", "cpu", "xpu", "ipu", "mtia", "type", "float", "double", "half", "bfloat16",
        "requires_grad_", "apply", "to_empty", "share_memory", "_apply",
    }
)  # fmt: skip
# Special methods that a proxy has of its own, or that make no sense to hand on.
_KEPT = frozenset(
    {
        "__class__", "__init__", "__new__", "__call__", "__repr__", "__dir__", "__copy__", "__deepcopy__", "__reduce__",
        "__reduce_ex__", "__getstate__", "__setstate__", "__getattr__", "__getattribute__", "__setattr__",
        "__delattr__", "__init_subclass__", "__class_getitem__", "__subclasshook__", "__hash__", "__eq__", "__ne__",
    }
)  # fmt: skip

_get = object.__getattribute__


class ModuleProxy(torch.nn.Module):
    """Base of a proxy: what is not the proxy's own is answered by ``_original``.

    It shares the ``__dict__`` of the module, so that whatever looks past :meth:`__getattribute__` (the guards of
    torch.compile do) sees the module. State of its own lies in slots, which subclasses declare.
    """

    __slots__ = ("_original",)
    _original: torch.nn.Module
    _own_names: ClassVar[frozenset[str]] = frozenset({"_original", "__class__", "__deepcopy__", "__reduce_ex__"})

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        declared = {name for name in vars(cls) if not (name.startswith("__") and name.endswith("__"))}
        cls._own_names = cls._own_names | declared | set(cls.__annotations__)

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        """The class of the module, so that ``isinstance`` says of the proxy what it says of the module."""
        return type(_get(self, "_original"))

    def __getattribute__(self, name: str) -> Any:
        if name in _get(self, "_own_names"):
            return _get(self, name)
        original = _get(self, "_original")
        value = getattr(original, name)
        return _returning_proxy(self, original, value) if name in _RETURN_SELF else value

    def __setattr__(self, name: str, value: Any) -> None:
        if name in _get(self, "_own_names"):
            object.__setattr__(self, name, value)
        else:
            setattr(_get(self, "_original"), name, value)

    def __delattr__(self, name: str) -> None:
        delattr(_get(self, "_original"), name)

    def __dir__(self) -> list[str]:
        public = {name for name in _get(self, "_own_names") if not name.startswith("_")}
        return sorted(public | set(dir(_get(self, "_original"))))

    def __repr__(self) -> str:
        return repr(_get(self, "_original"))

    def __copy__(self) -> torch.nn.Module:
        return copy.copy(_get(self, "_original"))  # type: ignore[no-any-return]

    def __deepcopy__(self, memo: dict[int, Any]) -> torch.nn.Module:
        return copy.deepcopy(_get(self, "_original"), memo)  # type: ignore[no-any-return]

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise AITuneUserInputError(
            "a wrapped module cannot be pickled: what it was tuned to lives in native libraries; "
            "use ait.save(module, path) for the tuned module, or pickle module.unwrap() for the plain one"
        )


def new_proxy(base: type[ModuleProxy], module: torch.nn.Module) -> ModuleProxy:
    """Return a proxy of a module, not initialised yet.

    Args:
        base: The proxy class.
        module: The module; the proxy also has the operators of its class (``len``, indexing and so on).
    """

    def call(self: ModuleProxy, /, *args: Any, **kwargs: Any) -> Any:
        """Call the module."""
        return module(*args, **kwargs)

    # A class of its own, so that a call reads no attribute: torch.compile follows it then into the module.
    own = type(base.__name__, (_proxy_class(base, type(module)),), {"__call__": call, "__module__": base.__module__})
    proxy: ModuleProxy = object.__new__(own)
    object.__setattr__(proxy, "__dict__", module.__dict__)
    object.__setattr__(proxy, "_original", module)
    return proxy


def _proxy_class(base: type[ModuleProxy], module_class: type) -> type[ModuleProxy]:
    known = _classes.get((base, module_class))
    if known is None:
        operators: dict[str, Any] = {}
        for parent in module_class.__mro__:
            if parent is torch.nn.Module or parent is object:
                continue
            for name, value in vars(parent).items():
                if name.startswith("__") and name.endswith("__") and name not in _KEPT and callable(value):
                    operators.setdefault(name, _operator(name))
        known = type(base.__name__, (base,), {**operators, "__module__": base.__module__, "__doc__": base.__doc__})
        _classes[base, module_class] = known
    return known


# Classes only, derived from others: not state that a run could see.
_classes: dict[tuple[type, type], type[ModuleProxy]] = {}


def _operator(name: str) -> Callable[..., Any]:
    def operate(self: ModuleProxy, *args: Any, **kwargs: Any) -> Any:
        original = _get(self, "_original")
        return getattr(type(original), name)(original, *args, **kwargs)

    operate.__name__ = name
    return operate


def _returning_proxy(proxy: ModuleProxy, original: torch.nn.Module, method: Any) -> Any:
    def call(*args: Any, **kwargs: Any) -> Any:
        result = method(*args, **kwargs)
        return proxy if result is original else result

    return call
