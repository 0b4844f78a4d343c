"""Compares classes with a table written down from a page of the published API."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import Any

import pytest

REQUIRED = inspect.Parameter.empty
POSITIONAL = inspect.Parameter.POSITIONAL_OR_KEYWORD
NAMED_REST = inspect.Parameter.VAR_KEYWORD


@dataclass(frozen=True)
class Method:
    """A method of a page: its name, and (name, kind, default) of each parameter after ``self`` or ``cls``."""

    name: str
    parameters: tuple[tuple[str, Any, Any], ...] = ()
    abstract: bool = False
    kind: str = "method"


def positional(*names: str) -> tuple[tuple[str, Any, Any], ...]:
    """Parameters by position or keyword, without defaults."""
    return tuple((name, POSITIONAL, REQUIRED) for name in names)


def parameters_of(function: Any, *, is_bound: bool = False) -> tuple[tuple[str, Any, Any], ...]:
    """(name, kind, default) of each parameter after ``self``."""
    parameters = list(inspect.signature(function).parameters.values())
    return tuple((p.name, p.kind, p.default) for p in (parameters if is_bound else parameters[1:]))


def check_method(cls: type, method: Method) -> None:
    """Fail when a class lacks a method, or has it with other parameters."""
    static = inspect.getattr_static(cls, method.name)
    is_class_method = isinstance(static, classmethod)
    assert is_class_method == (method.kind == "classmethod"), method.name
    assert isinstance(static, property) == (method.kind == "property"), method.name
    assert getattr(static, "__isabstractmethod__", False) == method.abstract, method.name
    if method.kind != "property":
        found = parameters_of(getattr(cls, method.name), is_bound=is_class_method)
        assert found == method.parameters, method.name


def assert_walk_fails_without(cls: type, method: Method) -> None:
    """Fail when :func:`check_method` passes a class that lacks the method, or has another of that name."""

    def other(self: Any, another: Any = None) -> None:
        """Not what the page says."""

    entries = {name: entry for base in reversed(cls.__mro__) for name, entry in vars(base).items()}
    del entries[method.name]
    for changed in (entries, {**entries, method.name: other}):
        # Not derived from the class, which would give the method back.
        without = type(cls.__name__, (), {name: each for name, each in changed.items() if not name.startswith("__")})
        with pytest.raises((AssertionError, AttributeError)):
            check_method(without, method)
