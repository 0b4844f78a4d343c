"""Run a module as often as needed without advancing it: its state afterwards is its state before."""

from __future__ import annotations

import functools
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Container, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch

from aitune.exceptions import AITuneUserInputError
from aitune.torch.module.module_parts import joined, named_parts, plain_tensors

_CONTAINER_TYPES: tuple[type[Any], ...] = (dict, OrderedDict, defaultdict, Counter, list, deque, set)


@dataclass
class StateChanges:
    """What a block changed before it was put back; filled when the block ends.

    Args:
        after: The buffers that had other values, or were other tensors, by name, with a copy of their values.
    """

    after: dict[str, torch.Tensor] = field(default_factory=dict)

    @property
    def buffers(self) -> tuple[str, ...]:
        """Names of the changed buffers."""
        return tuple(self.after)


@contextmanager
def preserved_state(module: torch.nn.Module, excused: Container[str] = ()) -> Iterator[StateChanges]:
    """Put a module and torch's random generators back as they were when the block ends, also after an exception.

    Put back are: values and identity of buffers, values of tensors in plain attributes and containers, attributes that
    were bound anew, added or removed (the training flag is one), the contents of dicts, lists, deques and sets that
    are attributes themselves (deeper nesting is not followed), generators held as attributes, and torch's random
    generators. Nothing is deep-copied, and parameters are not copied at all: only their version counters are compared.
    Values of tensors that torch cannot compare (sparse, nested, ``complex32``, ``float4``) are left as they are.

    Args:
        module: The module; its submodules are included, those in plain containers too.
        excused: Names of parameters that somebody else looks after.

    Yields:
        A record of the changes, filled when the block ends.

    Raises:
        AITuneUserInputError: The block changed a parameter in place, and did not fail otherwise.
    """
    changes = StateChanges()
    attributes = [_AttributeSnapshot.of(submodule) for _, submodule in named_parts(module)]
    tensors = _snapshot_tensors(module)
    versions = {name: _version(parameter) for name, parameter in module.named_parameters()}
    parameters = dict(module.named_parameters())
    buffers = dict(module.named_buffers())
    try:
        with preserved_random_state():
            yield changes
    finally:
        changes.after = _changed_buffers(module, buffers, tensors)
        for snapshot in attributes:
            snapshot.restore()
        for tensor in tensors.values():
            tensor.restore()
    changed = [name for name, parameter in parameters.items() if _version(parameter) != versions[name]]
    changed = [name for name in changed if name not in excused]
    if changed:
        raise AITuneUserInputError(
            f"the forward of {type(module).__name__} changes its parameter {changed[0]!r} in place, which cannot be "
            f"undone; expected a forward that leaves parameters alone: keep values that change as a buffer "
            f"(register_buffer), or leave this module out of the tuning"
        )


@contextmanager
def preserved_random_state() -> Iterator[None]:
    """Put torch's random generators (CPU, and CUDA where it is in use) back as they were when the block ends."""
    cpu = torch.get_rng_state()
    cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else None  # type: ignore[no-untyped-call]
    try:
        yield
    finally:
        torch.set_rng_state(cpu)
        if cuda is not None:
            torch.cuda.set_rng_state_all(cuda)


def _changed_buffers(
    module: torch.nn.Module, buffers: dict[str, torch.Tensor], snapshots: dict[str, _TensorSnapshot]
) -> dict[str, torch.Tensor]:
    changed = {}
    for name, buffer in module.named_buffers():
        if name not in buffers or buffer.is_meta:
            continue
        known = snapshots.get(name)
        if buffer is not buffers[name] or (known is not None and not _same_values(buffer, known.values)):
            changed[name] = buffer.detach().clone()
    return changed


@dataclass(frozen=True)
class _TensorSnapshot:
    tensor: torch.Tensor
    values: torch.Tensor

    @classmethod
    def of(cls, tensor: torch.Tensor) -> _TensorSnapshot:
        return cls(tensor, tensor.detach().clone())

    def restore(self) -> None:
        """Write the old values back if they changed."""
        if _same_values(self.tensor, self.values):
            return
        # A tensor made under inference_mode may be written only under it.
        with torch.inference_mode(self.tensor.is_inference()), torch.no_grad():
            if self.tensor.shape == self.values.shape:
                self.tensor.detach().copy_(self.values)
            else:
                self.tensor.data = self.values


@dataclass(frozen=True)
class _AttributeSnapshot:
    owner: torch.nn.Module
    values: dict[str, Any]
    contents: dict[str, Any] = field(default_factory=dict)
    generators: dict[str, torch.Tensor] = field(default_factory=dict)

    @classmethod
    def of(cls, owner: torch.nn.Module) -> _AttributeSnapshot:
        values = dict(vars(owner))
        contents = {name: value.copy() for name, value in values.items() if type(value) in _CONTAINER_TYPES}
        generators = {n: value.get_state() for n, value in values.items() if isinstance(value, torch.Generator)}
        return cls(owner, values, contents, generators)

    def restore(self) -> None:
        current = vars(self.owner)
        for name in [name for name in current if name not in self.values]:
            del current[name]
        for name, value in self.values.items():
            if current.get(name) is not value or name not in current:
                current[name] = value
        for name, content in self.contents.items():
            _restore_container(current[name], content)
        for name, state in self.generators.items():
            current[name].set_state(state)


def _restore_container(container: Any, content: Any) -> None:
    if isinstance(container, list | deque):
        if len(container) != len(content) or any(a is not b for a, b in zip(container, content, strict=True)):
            container.clear()
            container.extend(content)
    elif isinstance(container, set):
        if container != content:
            container.clear()
            container.update(content)
    elif list(container) != list(content) or any(container[key] is not content[key] for key in content):
        container.clear()
        container.update(content)


def _snapshot_tensors(module: torch.nn.Module) -> dict[str, _TensorSnapshot]:
    """Copy buffers and plain tensor attributes, each tensor once, under its first name."""
    named = list(module.named_buffers())
    for path, part in named_parts(module):
        buffers = [(name, buffer) for name, buffer in part._buffers.items() if buffer is not None]
        named.extend((joined(path, name), tensor) for name, tensor in (*buffers, *plain_tensors(part)))
    snapshots: dict[str, _TensorSnapshot] = {}
    seen: set[int] = set()
    for name, tensor in named:
        if id(tensor) not in seen and not isinstance(tensor, torch.nn.Parameter) and _can_be_compared(tensor):
            seen.add(id(tensor))
            snapshots[name] = _TensorSnapshot.of(tensor)
    return snapshots


def _can_be_compared(tensor: torch.Tensor) -> bool:
    plain = tensor.layout is torch.strided and not tensor.is_nested
    return plain and not tensor.is_meta and (tensor.is_quantized or _torch_compares(tensor.dtype, tensor.device.type))


@functools.cache
def _torch_compares(dtype: torch.dtype, device: str) -> bool:
    one = torch.empty(1, dtype=dtype, device=device)
    try:
        torch.equal(one, one.clone())
    except NotImplementedError:
        return False
    return True


def _same_values(tensor: torch.Tensor, values: torch.Tensor) -> bool:
    """Compare bit for bit in effect: NaN equals NaN. Equal tensors are not written, so their versions stay."""
    if tensor.shape != values.shape:
        return False
    if torch.equal(tensor.detach(), values):
        return True
    if not (values.is_floating_point() or values.is_complex()):
        return False
    return torch.allclose(tensor.detach(), values, rtol=0.0, atol=0.0, equal_nan=True)


def _version(tensor: torch.Tensor) -> int | None:
    """Return how often a tensor was written in place; tensors made under inference_mode do not count it."""
    return None if tensor.is_inference() else tensor._version
