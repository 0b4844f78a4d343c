"""Notices that the weights of a module are no longer the ones a backend was built with."""

from __future__ import annotations

import hashlib
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from operator import attrgetter, getitem, is_
from typing import Any

import torch

_SAMPLES_PER_TENSOR = 64
_version = attrgetter("_version")
_training = attrgetter("training")
_place = torch.Tensor.data_ptr
_PLAIN_HOLDERS = (dict, OrderedDict)


@dataclass(frozen=True)
class _Weight:
    name: str
    tensor: torch.Tensor


class WeightWatch:
    """Compares parameters, buffers, submodules, their hooks and their modes with what they were.

    Tensors are compared by object, version counter, address and value.

    Objects, counters and addresses are compared at every look; they show assignments, in-place operators,
    ``load_state_dict`` and ``.to``. Writes through ``.data`` show in the values alone: of those some are compared
    from time to time, and all by :meth:`refresh`. Tensors that are plain attributes are not watched.

    Args:
        module: The module whose weights are watched.
        interval: Seconds from one comparison of values to the next; ``None`` never compares values.
    """

    def __init__(self, module: torch.nn.Module, interval: float | None = None) -> None:
        self._module = module
        self._interval = interval
        self._lock = threading.Lock()
        self._due = float("inf")
        self._written: str | None = None
        self._take_snapshot()
        self._digests = {} if interval is None else {weight.name: _digest(weight.tensor) for weight in self._weights}

    def _take_snapshot(self) -> None:
        # A part that takes part twice is looked at once.
        parts = list(self._module.modules())
        self._weights = _weights_of(self._module)
        holders: list[Any] = [
            holder for part in parts for holder in (part._parameters, part._buffers, part._modules) if holder
        ]
        # Hooks of submodules are compiled in; those of the module itself run around the tuned forward.
        holders += [hooks for part in parts[1:] for hooks in (part._forward_hooks, part._forward_pre_hooks) if hooks]
        self._parts = parts[1:]
        self._is_empty = not holders
        self._holders = [holder for holder in holders if type(holder) in _PLAIN_HOLDERS]
        self._members = [dict(holder) for holder in self._holders]
        # Two tensors of one element compare as their values do, and scripted modules keep their tensors elsewhere.
        entries = [(holder, key, value) for holder in holders for key, value in holder.items()]
        apart = [entry for entry in entries if type(entry[0]) not in _PLAIN_HOLDERS or _has_truth(entry[2])]
        self._apart = [value for _, _, value in apart]
        self._apart_holders: list[Any] = [holder for holder, _, _ in apart]
        self._apart_keys = [key for _, key, _ in apart]
        # Inference tensors count no versions, and tensors without a memory of their own have no address.
        self._counted = [weight.tensor for weight in self._weights if not weight.tensor.is_inference()]
        # What moves one parameter of a part (.to, .half) moves them all.
        self._placed = [tensor for part in parts if (tensor := _first_parameter(part)) is not None]
        self._states = [*map(_version, self._counted), *map(_place, self._placed), *map(_training, self._parts)]
        self._samples = [] if self._interval is None else [_sample(weight.tensor) for weight in self._weights]
        if self._interval is not None:
            self._due = time.monotonic() + self._interval

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing that could change."""
        return self._is_empty

    def changed(self) -> str | None:
        """Return the name of a tensor that was replaced or written to, ``None`` when there is none."""
        if self._same():
            if time.monotonic() >= self._due:
                self._compare_samples()
            return self._written
        return self._first_change()

    def _same(self) -> bool:
        try:
            return (
                # Equal objects are not compared further; two tensors that differ have no truth, which raises.
                self._holders == self._members
                and [*map(_version, self._counted), *map(_place, self._placed), *map(_training, self._parts)]
                == self._states
                and (not self._apart or all(map(is_, map(getitem, self._apart_holders, self._apart_keys), self._apart)))
            )
        except (RuntimeError, TypeError, KeyError):
            # Or another thread is changing one of the dictionaries.
            return False

    def _first_change(self) -> str:
        try:
            return self._named_change()
        except RuntimeError:
            # As above; what it is can be said when it is done.
            return "a submodule"

    def _named_change(self) -> str:
        now = {weight.name: weight.tensor for weight in _weights_of(self._module)}
        for weight in self._weights:
            if now.get(weight.name) is not weight.tensor:
                return weight.name
        watched: list[tuple[torch.Tensor, Callable[[torch.Tensor], int]]] = [
            *((tensor, _version) for tensor in self._counted),
            *((tensor, _place) for tensor in self._placed),
        ]
        for (tensor, state), before in zip(watched, self._states, strict=False):
            if state(tensor) != before:
                return next(weight.name for weight in self._weights if weight.tensor is tensor)
        names = {id(part): name for name, part in self._module.named_modules()}
        for part, training in zip(self._parts, self._states[len(watched) :], strict=True):
            if part.training != training:
                return f"the mode of {names.get(id(part), 'a submodule')}"
        return "a submodule or a hook of one"

    def _compare_samples(self) -> None:
        # One thread looks; the others go on with what is known.
        if self._lock.acquire(blocking=False):
            try:
                for weight, before in zip(self._weights, self._samples, strict=True):
                    if _sample(weight.tensor) != before:
                        self._written = weight.name
                self._due = time.monotonic() + (self._interval or 0.0)
            finally:
                self._lock.release()

    def refresh(self) -> str | None:
        """Compare every value at once; when all are as they were, the weights count as unchanged from then on.

        So a checkpoint that is loaded again does not end the use of the backend.

        Returns:
            Name of a tensor whose values changed, ``None`` when there is none.
        """
        with self._lock:
            now = _weights_of(self._module)
            if not self._digests or [weight.name for weight in now] != [weight.name for weight in self._weights]:
                return None if self._same() else self._first_change()
            different = (weight.name for weight in now if _digest(weight.tensor) != self._digests[weight.name])
            self._written = next(different, None)
            if self._written is None:
                self._take_snapshot()
            return self._written


def _weights_of(module: torch.nn.Module) -> list[_Weight]:
    return [
        _Weight(f"{prefix}.{key}" if prefix else key, tensor)
        for prefix, part in module.named_modules()
        for holder in (part._parameters, part._buffers)
        for key, tensor in holder.items()
        if tensor is not None
    ]


def _has_truth(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.numel() < 2


def _first_parameter(part: torch.nn.Module) -> torch.Tensor | None:
    tensors = (tensor for tensor in part._parameters.values() if tensor is not None and _has_memory(tensor))
    # Integers stay where they are when the precision changes.
    return next((tensor for tensor in tensors if tensor.is_floating_point() or tensor.is_complex()), None)


def _has_memory(tensor: torch.Tensor) -> bool:
    plain = type(tensor.data) in (torch.Tensor, torch.nn.Parameter) and tensor.layout is torch.strided
    return plain and not tensor.is_quantized and not tensor.is_meta


def _in_line(tensor: torch.Tensor) -> torch.Tensor:
    """Return the values as one axis, in the order of the memory where that needs no copy."""
    plain = tensor.detach()
    if plain.dim() > 1:
        # Axes in the order of their strides: a channels_last or transposed weight is then contiguous.
        plain = plain.permute(sorted(range(plain.dim()), key=lambda axis: -plain.stride()[axis]))
    return plain.reshape(-1)


def _sample(tensor: torch.Tensor) -> bytes:
    if not _has_memory(tensor):
        return b""
    line = _in_line(tensor)
    return _bytes(line[:: max(1, line.numel() // _SAMPLES_PER_TENSOR)])


def _digest(tensor: torch.Tensor) -> bytes:
    return hashlib.blake2b(_bytes(_in_line(tensor))).digest() if _has_memory(tensor) else b""


def _bytes(line: torch.Tensor) -> bytes:
    return line.cpu().contiguous().view(torch.uint8).numpy().tobytes()
