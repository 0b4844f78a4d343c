"""A graph in a manifest: inputs, outputs, signature, in a form that can be checked without knowing any class.

A tuned module's guard is written from these values as Python source. So each is checked here to be what it says: a
size is an integer, a parameter is an identifier.
"""

from __future__ import annotations

import keyword
from typing import Annotated

from msgspec import UNSET, Meta, UnsetType

from aitune.artifact.records import Count, Name, Record, Size, Text
from aitune.artifact.structure import parse_structure

Identifier = Annotated[str, Meta(pattern=r"^[^\W\d]\w*\Z", max_length=200)]


class SymbolRecord(Record, frozen=True, kw_only=True):
    """A size that varies: name, bounds, the value to optimise for, and whether it counts the samples of a batch."""

    name: Identifier
    min: Size
    max: Size
    opt: Size | None = None
    is_batch: bool = False

    def __post_init__(self) -> None:
        if not self.min <= self.max or (self.opt is not None and not self.min <= self.opt <= self.max):
            raise ValueError(f"symbol {self.name!r} needs min <= opt <= max, got {self.min}, {self.opt}, {self.max}")


class AxisRecord(Record, frozen=True, kw_only=True):
    """One axis: a fixed size, or with a symbol the factor of its value."""

    size: Size
    symbol: Identifier | None = None

    def __post_init__(self) -> None:
        if self.symbol is not None and self.size == 0:
            raise ValueError(f"an axis has 0 times the symbol {self.symbol!r}")


class LeafRecord(Record, frozen=True, kw_only=True):
    """A tensor (axes, dtype, device) or a constant (one of the other fields) inside nested values."""

    locator: tuple[int | str, ...]
    axes: tuple[AxisRecord, ...] | UnsetType = UNSET
    dtype: Annotated[str, Meta(pattern=r"^[a-z][a-z0-9_]*\Z")] | UnsetType = UNSET
    device: Annotated[str, Meta(pattern=r"^[a-z]+(:[0-9]+)?\Z")] | UnsetType = UNSET
    plain: bool | int | str | UnsetType | None = UNSET
    float: Annotated[str, Meta(max_length=50)] | UnsetType = UNSET
    layout: Annotated[str, Meta(pattern=r"^[a-z_]+\Z")] | UnsetType = UNSET
    memory_format: Annotated[str, Meta(pattern=r"^[a-z_]+[0-9a-z_]*\Z")] | UnsetType = UNSET
    complex: Annotated[str, Meta(max_length=100)] | UnsetType = UNSET
    bytes: Annotated[str, Meta(pattern=r"^[A-Za-z0-9+/]*={0,2}\Z")] | UnsetType = UNSET
    ellipsis: bool | UnsetType = UNSET
    slice: tuple[int | None, int | None, int | None] | UnsetType = UNSET
    enum: tuple[Text, Text, Text] | UnsetType = UNSET

    def __post_init__(self) -> None:
        fields = self.__struct_fields__
        given = [name for name in fields if name not in ("locator", "axes") and getattr(self, name) is not UNSET]
        if given != ["dtype", "device"] if self.is_tensor else len(given) != 1:
            raise ValueError(f"leaf {list(self.locator)} is neither a tensor nor a constant: it has {given}")

    @property
    def is_tensor(self) -> bool:
        """Whether it is a tensor."""
        return self.axes is not UNSET


class ValuesRecord(Record, frozen=True, kw_only=True):
    """Named arguments or an output: nesting as torch's pytree writes it, and the leaves in order."""

    structure: Text
    strict: bool
    leaves: tuple[LeafRecord, ...]

    def __post_init__(self) -> None:
        expected = parse_structure(self.structure).leaves
        if expected != len(self.leaves):
            raise ValueError(f"the structure has {expected} leaves, {len(self.leaves)} are described")


class SignatureRecord(Record, frozen=True, kw_only=True):
    """How the forward is called."""

    positional: tuple[Identifier, ...]
    num_positional_only: Count
    var_positional: Identifier | None
    keyword_only: tuple[Identifier, ...]
    var_keyword: Identifier | None
    required: tuple[Identifier, ...]
    indirect: bool
    by_name: tuple[Identifier, ...]

    @property
    def parameters(self) -> tuple[tuple[str, ...], int, str | None, tuple[str, ...], str | None]:
        """What a function of this signature takes, whichever way it is called."""
        return (self.positional, self.num_positional_only, self.var_positional, self.keyword_only, self.var_keyword)

    def __post_init__(self) -> None:
        several = [name for name in (self.var_positional, self.var_keyword) if name is not None]
        names = [*self.positional, *self.keyword_only, *several]
        usable = all(name.isidentifier() and not keyword.iskeyword(name) for name in names)
        if len(set(names)) != len(names) or not usable:
            raise ValueError(f"{names} are not the parameters of a function")
        if self.num_positional_only > len(self.positional) or not {*self.required, *self.by_name} <= set(names):
            raise ValueError("the signature speaks of parameters that it does not have")


class GraphRecord(Record, frozen=True, kw_only=True, omit_defaults=True):
    """One graph of a module; ``changed_arguments`` are those into which the forward puts other values."""

    name: Name
    symbols: tuple[SymbolRecord, ...]
    inputs: ValuesRecord
    outputs: ValuesRecord
    signature: SignatureRecord
    changed_arguments: tuple[Identifier, ...] = ()

    def __post_init__(self) -> None:
        if not set(self.changed_arguments) <= {*self.signature.positional, *self.signature.keyword_only}:
            raise ValueError(f"graph {self.name!r} changes {list(self.changed_arguments)}, which it does not take")
        known = [symbol.name for symbol in self.symbols]
        used = {
            axis.symbol
            for leaf in (*self.inputs.leaves, *self.outputs.leaves)
            if not isinstance(leaf.axes, UnsetType)
            for axis in leaf.axes
            if axis.symbol is not None
        }
        if len(set(known)) != len(known) or not used <= set(known):
            raise ValueError(f"graph {self.name!r} has the symbols {known} and uses {sorted(used)}")
