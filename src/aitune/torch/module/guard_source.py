"""Writes the conditions under which a call belongs to a graph, as expressions of Python.

A call of a tuned module is to cost microseconds, so nothing is looked up or bound at run time: the conditions are made
once, from a graph's structure, dtypes, devices and sizes. They are a sequence, because several graphs of one module
begin alike and what they share is then checked once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils import _pytree as pytree

from aitune.torch.module.container_access import NoAccessError, children_of, container_access
from aitune.torch.module.forward_signature import ForwardSignature
from aitune.torch.module.graph_spec import GraphSpec
from aitune.torch.module.sample_metadata import CONSTANT_TYPES, Constant
from aitune.torch.module.tensor_spec import Axis, TensorSpec

RESERVED_PREFIX = "_aitune"
"""Every name of the written source begins with it, apart from the parameters."""

_EXACTLY_COMPARED = (int, str, bytes, torch.dtype, torch.device, torch.layout, torch.memory_format)
_DEVICE_FLAGS = {"cpu": "is_cpu", "cuda": "is_cuda", "meta": "is_meta", "mps": "is_mps", "xpu": "is_xpu"}


class NoGuardError(Exception):
    """A graph's structure has no written guard; it is matched through the pytree instead."""


class SourceNames:
    """Names for objects and for values computed on the way; the same for the same thing, so that graphs can share."""

    def __init__(self) -> None:
        self.objects: dict[str, Any] = {
            "_aitune_absent": ABSENT,
            "_aitune_Tensor": torch.Tensor,
            "_aitune_Parameter": torch.nn.Parameter,
            "_aitune_strided": torch.strided,
            "_aitune_constant_key": _constant_key,
            # Some versions of torch take a torch.Size apart, others do not.
            "_aitune_constant_types": tuple(kind for kind in CONSTANT_TYPES if kind not in pytree.SUPPORTED_NODES),
            "_aitune_isinstance": isinstance,
            "_aitune_getattr": getattr,
            "_aitune_hasattr": hasattr,
            "_aitune_len": len,
        }
        self._variables: dict[str, str] = {}

    def object(self, value: Any) -> str:
        """Return the name of an object that the source refers to.

        Args:
            value: The object; equal objects of one type share a name.
        """
        for name, known in self.objects.items():
            if known is value or (type(known) is type(value) and known == value):
                return name
        name = f"{RESERVED_PREFIX}_o{len(self.objects)}"
        self.objects[name] = value
        return name

    def variable(self, expression: str) -> str:
        """Return the name of the local variable that holds the value of an expression.

        Args:
            expression: The expression that computes it.
        """
        return self._variables.setdefault(expression, f"{RESERVED_PREFIX}_v{len(self._variables)}")


class _Absent:
    def __repr__(self) -> str:
        return "<absent>"


ABSENT: Any = _Absent()
"""Stands for an argument that was not given."""


def _constant_key(value: Any) -> tuple[str, str]:
    return Constant((), value).key


@dataclass(frozen=True)
class Guard:
    """The written guard of one graph.

    Args:
        conditions: Expressions that are all true for calls of the graph alone, in the order in which to check them.
        tensors: Expressions of the input tensors, in the order of the input spec; valid once the conditions hold.
    """

    conditions: tuple[str, ...]
    tensors: tuple[str, ...]


def parameter_list(signature: ForwardSignature) -> str:
    """Return the parameters of a function that takes every call of the signature, right or wrong.

    Args:
        signature: The original forward's; every parameter gets a default that says it was not given.

    Raises:
        NoGuardError: A parameter has a name that the source uses itself.
    """
    names = [*signature.positional, *signature.keyword_only, signature.var_positional, signature.var_keyword]
    if any(name is not None and name.startswith(RESERVED_PREFIX) for name in names):
        raise NoGuardError
    parts = ["_aitune_self"]
    parts += [f"{name}=_aitune_absent" for name in signature.positional[: signature.num_positional_only]]
    parts.append("/")
    parts += [f"{name}=_aitune_absent" for name in signature.positional[signature.num_positional_only :]]
    parts.append(f"*{extra_positional(signature)}")
    parts += [f"{name}=_aitune_absent" for name in signature.keyword_only]
    parts.append(f"**{extra_keywords(signature)}")
    return ", ".join(parts)


def extra_positional(signature: ForwardSignature) -> str:
    """Return the name under which positional arguments beyond the declared ones arrive."""
    return signature.var_positional or "_aitune_extra"


def extra_keywords(signature: ForwardSignature) -> str:
    """Return the name under which keyword arguments beyond the declared ones arrive."""
    return signature.var_keyword or "_aitune_unknown"


def guard_source(graph_spec: GraphSpec, names: SourceNames, equal_symbols: Sequence[Sequence[str]] = ()) -> Guard:
    """Write the conditions under which a call belongs to a graph.

    Args:
        graph_spec: The graph.
        names: Names of what the conditions refer to; filled here, and shared by the graphs of a module.
        equal_symbols: Groups of symbols that the backend takes for one.

    Raises:
        NoGuardError: The arguments hold a container that has no written guard.
    """
    return _Writer(graph_spec, names).write(equal_symbols)


class _Writer:
    def __init__(self, graph_spec: GraphSpec, names: SourceNames) -> None:
        self._spec = graph_spec
        self._names = names
        self._conditions: list[str] = []
        self._sizes: list[str] = []
        self._tensors: list[str] = []
        self._symbols: dict[str, str] = {}
        # Tensors whose axes are all alike have one shape: it is compared as a whole.
        self._shapes: dict[tuple[Axis, ...], str] = {}
        self._leaves = iter(graph_spec.input_spec.leaves)

    def write(self, equal_symbols: Sequence[Sequence[str]]) -> Guard:
        signature, structure = self._spec.forward_signature, self._spec.input_spec.structure
        given = [str(name) for name in structure.context]
        declared = (*signature.positional, *signature.keyword_only)
        more = [name for name in given if name not in (*declared, signature.var_positional)]
        positional, keywords = extra_positional(signature), extra_keywords(signature)
        self._conditions += [f"{name} is _aitune_absent" for name in declared if name not in given]
        if positional not in given:
            self._conditions.append(f"not {positional}")
        self._conditions.append(f"[*{keywords}] == {self._names.object(more)}" if more else f"not {keywords}")
        for name, child in zip(given, children_of(structure), strict=True):
            self._walk(f"{keywords}[{name!r}]" if name in more else name, child)
        for group in equal_symbols:
            variables = [self._symbols[name] for name in group if name in self._symbols]
            self._sizes += [f"{variables[0]} == {other}" for other in variables[1:]]
        return Guard((*self._conditions, *self._sizes), tuple(self._tensors))

    def _bound(self, expression: str) -> tuple[str, str]:
        """Return the text that computes an expression at first, and the text that names its value from then on."""
        if expression.isidentifier():
            return expression, expression
        variable = self._names.variable(expression)
        return f"({variable} := {expression})", variable

    def _walk(self, expression: str, structure: pytree.TreeSpec) -> None:
        if not structure.is_leaf():
            first, name = self._bound(expression)
            try:
                access = container_access(structure)
            except NoAccessError as error:
                raise NoGuardError from error
            self._conditions.append(f"{first}.__class__ is {self._names.object(access.container)}")
            if access.keys is not None:
                self._conditions.append(access.keys.format(name, self._names.object(list(structure.context))))
            self._conditions += [condition.format(name) for condition in access.conditions]
            for number, child in enumerate(children_of(structure)):
                self._walk(access.child(name, number), child)
            return
        leaf = next(self._leaves)
        if isinstance(leaf, Constant):
            self._constant(expression, leaf)
        else:
            self._tensor(expression, leaf)

    def _constant(self, expression: str, constant: Constant) -> None:
        first, name = self._bound(expression)
        if not self._spec.input_spec.strict:
            self._conditions.append(f"_aitune_isinstance({first}, _aitune_constant_types)")
            return
        value = constant.value
        if value is None or isinstance(value, bool):
            self._conditions.append(f"{first} is {value!r}")
        elif type(value) in _EXACTLY_COMPARED:
            known = self._names.object(value)
            self._conditions.append(f"({first}.__class__ is {known}.__class__ and {name} == {known})")
        else:
            # Floats differ by sign of zero and by NaN, other types by rules of their own: compared as capture does.
            self._conditions.append(
                f"(_aitune_isinstance({first}, _aitune_constant_types) "
                f"and _aitune_constant_key({name}) == {constant.key!r})"
            )

    def _tensor(self, expression: str, spec: TensorSpec) -> None:
        first, name = self._bound(expression)
        self._tensors.append(name)
        flag = _DEVICE_FLAGS.get(spec.device)
        self._conditions += [
            f"({first}.__class__ is _aitune_Tensor or {name}.__class__ is _aitune_Parameter)",
            f"{name}.dtype is {self._names.object(spec.dtype)}",
            f"{name}.layout is _aitune_strided",
            self._shape(name, spec),
            f"{name}.{flag}" if flag else f"{name}.device.type == {spec.device!r}",
        ]
        if spec.dtype.is_floating_point or spec.dtype.is_complex:
            # The memory of such a tensor does not hold its values: a backend that reads it would see another sign.
            self._conditions.append(f"not {name}.is_neg()")
        if spec.dtype.is_complex:
            self._conditions.append(f"not {name}.is_conj()")

    def _shape(self, name: str, spec: TensorSpec) -> str:
        """Return the condition on the rank, and take note of those on the sizes."""
        alike = self._shapes.get(spec.axes)
        if alike is not None:
            return f"{name}.shape == {alike}"
        shape = self._shapes[spec.axes] = self._names.variable(f"{name}.shape")
        for number, axis in enumerate(spec.axes):
            size = f"{shape}[{number}]"
            if axis.symbol is None:
                self._sizes.append(f"{size} == {axis.size}")
            elif axis.symbol.name in self._symbols:
                factor = f"{axis.size} * " if axis.size != 1 else ""
                self._sizes.append(f"{size} == {factor}{self._symbols[axis.symbol.name]}")
            else:
                value = size if axis.size == 1 else f"{size} // {axis.size}"
                variable = self._names.variable(value)
                self._symbols[axis.symbol.name] = variable
                if axis.size != 1:
                    self._sizes.append(f"{size} % {axis.size} == 0")
                self._sizes.append(f"{axis.symbol.min} <= ({variable} := {value}) <= {axis.symbol.max}")
        return f"_aitune_len({shape} := {name}.shape) == {spec.rank}"
