"""Compares classes with a table written down from a page of the published API."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import Any

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
