"""Writes the Python source of a tuned module's forward: which call belongs to which graph, checked in a few steps.

A call of a tuned module is to cost microseconds, so nothing is looked up or bound at run time: the function has the
parameters of the original forward, and for every graph one condition over types, dtypes, devices and sizes.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils import _pytree as pytree

from aitune.torch.module.forward_signature import ForwardSignature
from aitune.torch.module.graph_spec import GraphSpec
from aitune.torch.module.sample_metadata import Constant, SampleMetadata
from aitune.torch.module.tensor_spec import TensorSpec

_PLAIN_IDENTIFIER = re.compile(r"^[A-Za-z_][A-Za-z_0-9]*$")
_DEVICE_FLAGS = {"cpu": "is_cpu", "cuda": "is_cuda", "meta": "is_meta", "mps": "is_mps", "xpu": "is_xpu"}


class NoGuardError(Exception):
    """A graph's structure has no written guard; it is matched through the pytree instead."""


@dataclass
class GuardSource:
    """The source of one graph's condition, and what it refers to.

    Args:
        condition: Expression that is true for calls of the graph; it names the sizes of symbols on its way.
        tensors: Expressions of the input tensors, in the order of the input spec.
        constants: Objects that the expressions name.
    """

    condition: str
    tensors: list[str]
    constants: dict[str, Any] = field(default_factory=dict)


def parameter_list(signature: ForwardSignature) -> str:
    """Return the parameters of a function that takes every call of the signature, right or wrong.

    Args:
        signature: The original forward's; every parameter gets the default ``_absent``.

    Raises:
        NoGuardError: A parameter name cannot be written.
    """
    names = [*signature.positional, *signature.keyword_only, signature.var_positional, signature.var_keyword]
    if any(name is not None and (not _PLAIN_IDENTIFIER.match(name) or name.startswith("_aitune")) for name in names):
        raise NoGuardError
    parts = ["_aitune_self"]
    parts += [f"{name}=_absent" for name in signature.positional[: signature.num_positional_only]]
    parts.append("/")
    parts += [f"{name}=_absent" for name in signature.positional[signature.num_positional_only :]]
    parts.append(f"*{signature.var_positional or '_aitune_extra'}")
    parts += [f"{name}=_absent" for name in signature.keyword_only]
    parts.append(f"**{signature.var_keyword or '_aitune_unknown'}")
    return ", ".join(parts)


def guard_source(graph_spec: GraphSpec, number: int, equal_symbols: Sequence[Sequence[str]] = ()) -> GuardSource:
    """Write the condition under which a call belongs to a graph.

    Args:
        graph_spec: The graph.
        number: Number of the graph, which keeps its names apart from other graphs'.
        equal_symbols: Groups of symbols that the backend takes for one.

    Raises:
        NoGuardError: The arguments hold a container that has no written guard.
    """
    return _Writer(graph_spec, number).write(equal_symbols)


class _Writer:
    def __init__(self, graph_spec: GraphSpec, number: int) -> None:
        self._spec = graph_spec
        self._prefix = f"g{number}_"
        self._conditions: list[str] = []
        self._sizes: list[str] = []
        self._tensors: list[str] = []
        self._constants: dict[str, Any] = {}
        self._symbols: dict[str, str] = {}
        self._leaves = iter(graph_spec.input_spec.leaves)

    def write(self, equal_symbols: Sequence[Sequence[str]]) -> GuardSource:
        signature, metadata = self._spec.forward_signature, self._spec.input_spec
        given = [str(name) for name in metadata.structure.context]
        extra_keywords = [name for name in given if name not in self._declared(signature)]
        absent = [name for name in (*signature.positional, *signature.keyword_only) if name not in given]
        self._conditions += [f"{name} is _absent" for name in absent]
        positional_extra = signature.var_positional or "_aitune_extra"
        if positional_extra not in given:
            self._conditions.append(f"not {positional_extra}")
        keyword_extra = signature.var_keyword or "_aitune_unknown"
        self._conditions.append(
            f"len({keyword_extra}) == {len(extra_keywords)}" if extra_keywords else f"not {keyword_extra}"
        )
        self._conditions += [f"{name!r} in {keyword_extra}" for name in extra_keywords]
        for name, child in zip(given, _children(metadata.structure), strict=True):
            self._walk(f"{keyword_extra}[{name!r}]" if name in extra_keywords else name, child)
        for group in equal_symbols:
            variables = [self._symbols[name] for name in group if name in self._symbols]
            self._sizes += [f"{variables[0]} == {other}" for other in variables[1:]]
        return GuardSource(" and ".join([*self._conditions, *self._sizes]), self._tensors, self._constants)

    @staticmethod
    def _declared(signature: ForwardSignature) -> tuple[str | None, ...]:
        return (*signature.positional, *signature.keyword_only, signature.var_positional)

    def _walk(self, expression: str, structure: pytree.TreeSpec) -> None:
        if structure.is_leaf():
            leaf = next(self._leaves)
            if isinstance(leaf, Constant):
                self._constant(expression, leaf)
            else:
                self._tensor(expression, leaf)
            return
        children = _children(structure)
        if structure.type not in (dict, list, tuple):
            raise NoGuardError
        self._conditions.append(f"{expression}.__class__ is {structure.type.__name__}")
        self._conditions.append(f"len({expression}) == {len(children)}")
        keys = list(structure.context) if structure.type is dict else list(range(len(children)))
        if not all(type(key) in (str, int) for key in keys):
            raise NoGuardError
        if structure.type is dict:
            self._conditions += [f"{key!r} in {expression}" for key in keys]
        for key, child in zip(keys, children, strict=True):
            self._walk(f"{expression}[{key!r}]", child)

    def _constant(self, expression: str, constant: Constant) -> None:
        if not self._spec.input_spec.strict:
            self._conditions.append(f"not isinstance({expression}, _Tensor) and {expression} is not _absent")
            return
        value = constant.value
        if value is None or isinstance(value, bool):
            self._conditions.append(f"{expression} is {value!r}")
            return
        if type(value) not in (int, str, bytes, torch.dtype, torch.device, torch.layout, torch.memory_format):
            # Floats differ by sign of zero and by NaN, other types by rules of their own: compared as capture does.
            self._conditions.append(f"_constant_key({expression}) == {constant.key!r}")
            return
        name = self._name("value", value)
        self._conditions.append(f"{expression}.__class__ is {name}.__class__ and {expression} == {name}")

    def _tensor(self, expression: str, spec: TensorSpec) -> None:
        number = len(self._tensors)
        self._tensors.append(expression)
        flag = _DEVICE_FLAGS.get(spec.device)
        dtype = self._name("dtype", spec.dtype)
        shape = f"{self._prefix}s{number}"
        self._conditions.append(f"({expression}.__class__ is _Tensor or {expression}.__class__ is _Parameter)")
        self._conditions.append(f"{expression}.dtype is {dtype}")
        self._conditions.append(f"{expression}.{flag}" if flag else f"{expression}.device.type == {spec.device!r}")
        self._conditions.append(f"{expression}.layout is _strided")
        self._conditions.append(f"len({shape} := {expression}.shape) == {spec.rank}")
        for axis_number, axis in enumerate(spec.axes):
            size = f"{shape}[{axis_number}]"
            if axis.symbol is None:
                self._sizes.append(f"{size} == {axis.size}")
            elif axis.symbol.name in self._symbols:
                factor = f"{axis.size} * " if axis.size != 1 else ""
                self._sizes.append(f"{size} == {factor}{self._symbols[axis.symbol.name]}")
            else:
                variable = f"{self._prefix}n{len(self._symbols)}"
                self._symbols[axis.symbol.name] = variable
                if axis.size != 1:
                    self._sizes.append(f"{size} % {axis.size} == 0")
                value = size if axis.size == 1 else f"{size} // {axis.size}"
                self._sizes.append(f"{axis.symbol.min} <= ({variable} := {value}) <= {axis.symbol.max}")

    def _name(self, kind: str, value: Any) -> str:
        name = f"{self._prefix}{kind}{len(self._constants)}"
        self._constants[name] = value
        return name


def _children(structure: pytree.TreeSpec) -> list[pytree.TreeSpec]:
    children = getattr(structure, "children", None)
    # torch 2.10 has the attribute ``children_specs``; later versions warn and offer the method ``children()``.
    return list(children()) if callable(children) else list(structure.children_specs)


def matches(metadata: SampleMetadata, graph_spec: GraphSpec, equal_symbols: Sequence[Sequence[str]] = ()) -> bool:
    """Say whether a call with this metadata belongs to a graph, sizes included: what a written guard checks, slowly.

    Args:
        metadata: Metadata of the call, with every axis fixed.
        graph_spec: The graph.
        equal_symbols: Groups of symbols that the backend takes for one.
    """
    return mismatch(metadata, graph_spec, equal_symbols) is None


def mismatch(
    metadata: SampleMetadata, graph_spec: GraphSpec, equal_symbols: Sequence[Sequence[str]] = ()
) -> str | None:
    """Return in words why a call does not belong to a graph, ``None`` when it does; see :func:`matches`."""
    if metadata != graph_spec.input_spec:
        return f"its arguments are {metadata.describe()}, the graph takes {graph_spec.input_spec.describe()}"
    values: dict[str, int] = {}
    for seen, spec in zip(metadata.tensor_specs, graph_spec.input_spec.tensor_specs, strict=True):
        if seen.device != spec.device:
            return f"{seen} is on {seen.device}, the graph was tuned on {spec.device}"
        for number, (actual, axis) in enumerate(zip(seen.axes, spec.axes, strict=True)):
            if axis.symbol is None:
                fits = actual.size == axis.size
            else:
                value = values.setdefault(axis.symbol.name, actual.size // axis.size)
                fits = actual.size == value * axis.size and axis.symbol.min <= value <= axis.symbol.max
            if not fits:
                return f"axis {number} of {seen} is outside the tuned range {axis} = {axis.min}..{axis.max}"
    for group in equal_symbols:
        if len({values[name] for name in group if name in values}) > 1:
            return f"the sizes {', '.join(group)} differ, and the backend takes them for one"
    return None
