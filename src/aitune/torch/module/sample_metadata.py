"""What a call (or an output) looks like, apart from the numbers in it; equal metadata means the same graph."""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch.utils import _pytree as pytree

from aitune.exceptions import UnsupportedCallError
from aitune.torch.module.containers import register_containers
from aitune.torch.module.locator import Locator, format_locator, locator_from_key_path
from aitune.torch.module.tensor_spec import Axis, TensorSpec

CONSTANT_TYPES = (
    type(None), bool, int, float, complex, str, bytes, enum.Enum, type(Ellipsis), slice,
    torch.dtype, torch.device, torch.layout, torch.memory_format, torch.Size,
)  # fmt: skip
"""Types of the leaves that are no tensors."""


@dataclass(frozen=True)
class Constant:
    """A leaf that is no tensor: a flag, a number, a name.

    Args:
        locator: Where it sits.
        value: The value itself.
    """

    locator: Locator
    value: Any

    @property
    def key(self) -> tuple[str, str]:
        """Identity of the value: its type and how it is written, so that ``1``, ``1.0`` and ``True`` differ."""
        return type(self.value).__qualname__, repr(self.value)

    def __str__(self) -> str:
        return f"{format_locator(self.locator)} = {self.value!r}"


@dataclass(frozen=True, eq=False)
class SampleMetadata:
    """Structure, tensors and constants of nested values.

    Two are equal when a call of one kind is a call of the other kind: same structure and names, same ranks and dtypes,
    and in strict mode the same constants. Shapes do not count.

    Args:
        structure: Nesting, as torch's pytree describes it.
        leaves: Tensors and constants in the order of the structure.
        strict: Whether constants are part of the identity.
    """

    structure: pytree.TreeSpec
    leaves: tuple[TensorSpec | Constant, ...]
    strict: bool = False

    @classmethod
    def from_inputs(cls, inputs: Mapping[str, Any], strict: bool = False) -> SampleMetadata:
        """Describe named arguments.

        Args:
            inputs: Values by parameter name, as :meth:`ForwardSignature.bind` returns them.
            strict: Whether constants are part of the identity.

        Raises:
            UnsupportedCallError: An argument holds something that is neither a tensor, nor a constant, nor a container
                that torch's pytree knows; or a tensor that no backend takes (sparse, quantised, of a class of its own).
        """
        return cls._from_tree(dict(inputs), strict, "argument")

    @classmethod
    def from_outputs(cls, output: Any, strict: bool = False) -> SampleMetadata:
        """Describe what a forward returned; see :meth:`from_inputs`."""
        return cls._from_tree(output, strict, "output")

    @classmethod
    def _from_tree(cls, tree: Any, strict: bool, what: str) -> SampleMetadata:
        try:
            register_containers(tree)
            with_paths, structure = pytree.tree_flatten_with_path(tree)
        except Exception as error:
            # The functions that take a container apart are its author's; a DynamicCache refuses some of its layers.
            raise UnsupportedCallError(f"an {what} cannot be taken apart: {type(error).__name__}: {error}") from error
        leaves: list[TensorSpec | Constant] = []
        for key_path, leaf in with_paths:
            locator = locator_from_key_path(key_path)
            if isinstance(leaf, torch.Tensor):
                _require_plain(leaf, what, locator)
                leaves.append(TensorSpec.of(leaf, locator))
            elif isinstance(leaf, CONSTANT_TYPES):
                leaves.append(Constant(locator, leaf))
            else:
                raise UnsupportedCallError(
                    f"{what} {format_locator(locator)} is a {type(leaf).__module__}.{type(leaf).__qualname__}, "
                    f"which is neither a tensor, a constant nor a known container; if it is a container, register "
                    f"it with torch.utils._pytree.register_pytree_node"
                )
        return cls(structure, tuple(leaves), strict)

    @cached_property
    def tensor_specs(self) -> tuple[TensorSpec, ...]:
        """The tensors, in the order of the structure."""
        return tuple(leaf for leaf in self.leaves if isinstance(leaf, TensorSpec))

    @cached_property
    def constants(self) -> tuple[Constant, ...]:
        """The leaves that are no tensors, in the order of the structure."""
        return tuple(leaf for leaf in self.leaves if isinstance(leaf, Constant))

    @cached_property
    def _has_inner_dict(self) -> bool:
        # The outermost one holds the named arguments, whose order the signature gives.
        return str(self.structure).count("TreeSpec(dict,") > 1

    @cached_property
    def identity(self) -> tuple[Any, ...]:
        """What equality and hash are made from; plain data, the same in every process."""
        return (
            str(self.structure),
            tuple((spec.locator, spec.rank, str(spec.dtype)) for spec in self.tensor_specs),
            tuple((constant.locator, constant.key) for constant in self.constants) if self.strict else None,
        )

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SampleMetadata) and self.identity == other.identity

    def __hash__(self) -> int:
        return hash(self.identity)

    def with_axes(self, axes: Sequence[tuple[Axis, ...]]) -> SampleMetadata:
        """Return the same metadata with other axes, one tuple for each tensor."""
        remaining = iter(axes)
        return replace(
            self,
            leaves=tuple(
                leaf.with_axes(next(remaining)) if isinstance(leaf, TensorSpec) else leaf for leaf in self.leaves
            ),
        )

    def tensors_of(self, tree: Any) -> list[torch.Tensor]:
        """Return the tensors of values that have this structure, in order.

        Entries of plain dicts are found by key, in whatever order the dict holds them.

        Args:
            tree: Nested values.

        Raises:
            UnsupportedCallError: A dict has other keys.
        """
        leaves, structure = pytree.tree_flatten(tree)
        if self._has_inner_dict and structure != self.structure:
            try:
                leaves = self.structure.flatten_up_to(tree)
            except ValueError as error:
                raise UnsupportedCallError(
                    f"the values have another structure than {self.describe()}: {error}"
                ) from error
        return [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]

    def rebuild(self, tensors: Sequence[torch.Tensor]) -> Any:
        """Put tensors and this metadata's constants back into the nested structure, types included.

        Args:
            tensors: One for each of :attr:`tensor_specs`, in order.
        """
        remaining = iter(tensors)
        leaves = [next(remaining) if isinstance(leaf, TensorSpec) else leaf.value for leaf in self.leaves]
        return pytree.tree_unflatten(leaves, self.structure)

    def describe(self) -> str:
        """Name tensors with their axes, and constants with their values, for people."""
        return ", ".join(str(leaf) for leaf in self.leaves)


def _require_plain(tensor: torch.Tensor, what: str, locator: Locator) -> None:
    if torch._C._functorch.is_functorch_wrapped_tensor(tensor):
        kind = "inside torch.func"
    elif tensor.is_meta:
        kind = "without values (on the meta device)"
    elif tensor.is_nested:
        kind = "nested"
    elif tensor.layout is not torch.strided:
        kind = f"sparse ({tensor.layout})"
    elif tensor.is_quantized:
        kind = f"quantised ({tensor.dtype})"
    elif type(tensor) not in (torch.Tensor, torch.nn.Parameter):
        kind = f"of the class {type(tensor).__module__}.{type(tensor).__qualname__}"
    else:
        return
    raise UnsupportedCallError(
        f"{what} {format_locator(locator)} is a tensor that is {kind}; calls with it cannot be tuned and run on the "
        f"original module, expected a plain dense tensor"
    )
