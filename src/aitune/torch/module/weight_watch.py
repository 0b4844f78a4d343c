"""Notices that the weights of a module are no longer the ones a backend was built with."""

from __future__ import annotations

import inspect
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import attrgetter, getitem, is_
from typing import Any

import torch

from aitune.torch.module.hook_watch import global_hooks
from aitune.torch.module.interception import InterceptedForward
from aitune.torch.module.module_parts import joined, named_parts, plain_tensors, plain_values, registered_tensors
from aitune.torch.module.tensor_digests import TensorDigests, digest_of, has_plain_values, sample_of

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

    Submodules in plain lists and dicts count as those that torch knows. At every look the objects, version counters and
    addresses are compared; they show assignments, in-place operators, ``load_state_dict`` and ``.to``. What these do
    not show is looked for from time to time, and at once by :meth:`refresh`: other values (writes through ``.data``, or
    to inference tensors), another class or forward of a submodule, another submodule in a plain list, and other values
    of tensors that are plain attributes, as long as their shape is the same: a table made for the sizes of each call is
    no weight. From time to time some of the values are compared, by :meth:`refresh` all of them.

    Args:
        module: The module whose weights are watched.
        interval: Seconds from one comparison of values to the next; ``None`` never compares values.
        digests: Hashes of weights that are known already.
    """

    def __init__(
        self, module: torch.nn.Module, interval: float | None = None, digests: TensorDigests | None = None
    ) -> None:
        self._module = module
        self._interval = interval
        self._lock = threading.Lock()
        self._due = float("inf")
        self._written: str | None = None
        self._take_snapshot()
        watched = [] if interval is None else [*self._weights, *_plain_tensors(named_parts(module))]
        hashes = (digests or TensorDigests()).of([weight.tensor for weight in watched])
        self._digests = {weight.name: digest for weight, digest in zip(watched, hashes, strict=True)}

    def _take_snapshot(self) -> None:
        # A part that takes part twice is looked at once.
        named = named_parts(self._module)
        parts = [part for _, part in named]
        self._weights = _weights_of(named)
        holders: list[Any] = [
            holder for part in parts for holder in (part._parameters, part._buffers, part._modules) if holder
        ]
        # Hooks of submodules are compiled in; those of the module itself run around the tuned forward.
        holders += [hooks for part in parts[1:] for hooks in (part._forward_hooks, part._forward_pre_hooks) if hooks]
        holders += [hooks for hooks in global_hooks() if hooks and len(parts) > 1]
        self._parts = parts[1:]
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
        plain = [] if self._interval is None else _plain_tensors(named)
        # Not the tensors themselves: a module may put others in their place at every call.
        self._plain = [(weight.name, weight.tensor.shape, weight.tensor.dtype) for weight in plain]
        self._is_empty = not holders and not plain
        if self._interval is not None:
            self._kinds = [(name, part, _kind(part), _plain_modules(part)) for name, part in named]
            self._samples = {weight.name: sample_of(weight.tensor) for weight in (*self._weights, *plain)}
            self._addresses = {weight.name: _address(weight.tensor) for weight in self._weights}
            self._due = time.monotonic() + self._interval

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing that could change."""
        return self._is_empty

    def changed(self) -> str | None:
        """Return the name of a tensor that was replaced or written to, ``None`` when there is none."""
        if self._same():
            if time.monotonic() >= self._due:
                self._look_closer()
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
        named = named_parts(self._module)
        now = {weight.name: weight.tensor for weight in _weights_of(named)}
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
        names = {id(part): name for name, part in named}
        for part, training in zip(self._parts, self._states[len(watched) :], strict=True):
            if part.training != training:
                return f"the mode of {names.get(id(part), 'a submodule')}"
        return "a submodule or a hook of one"

    def _look_closer(self) -> None:
        # One thread looks; the others go on with what is known.
        if self._lock.acquire(blocking=False):
            try:
                self._written = (
                    self._hidden_change(self._weights, sample_of, self._samples) or self._moved() or self._written
                )
            except RuntimeError:
                # Another thread is changing the module: what it did is seen at the next look.
                pass
            finally:
                self._due = time.monotonic() + (self._interval or 0.0)
                self._lock.release()

    def _hidden_change(
        self, weights: Sequence[_Weight], summary: Callable[[torch.Tensor], Any], before: dict[str, Any]
    ) -> str | None:
        """Name what changed without a trace in objects and counters.

        Args:
            weights: The parameters and buffers.
            summary: What is compared of a tensor's values.
            before: What it was, by name.
        """
        # The parts that were there: whether torch knows others by now is compared at every look.
        for name, part, kind, inner in self._kinds:
            if not all(map(is_, _kind(part), kind)):
                return f"the forward of {name or 'its class'}"
            now = _plain_modules(part)
            if len(now) != len(inner) or not all(map(is_, now, inner)):
                return f"a plain attribute of {name or 'the module'}"
        plain = {
            weight.name: weight.tensor for weight in _plain_tensors([(name, part) for name, part, *_ in self._kinds])
        }
        for name, shape, dtype in self._plain:
            tensor = plain.get(name)
            alike = tensor is not None and tensor.shape == shape and tensor.dtype is dtype
            if tensor is None or (alike and summary(tensor) != before[name]):
                return name
        return next((weight.name for weight in weights if summary(weight.tensor) != before[weight.name]), None)

    def _other_part(self, named: Sequence[tuple[str, torch.nn.Module]]) -> str | None:
        for (name, part), (known, known_part, *_) in zip(named, self._kinds, strict=False):
            if name != known or part is not known_part:
                return known
        return None if len(named) == len(self._kinds) else "a submodule"

    def _moved(self) -> str | None:
        """Name a weight that lies elsewhere with other values: a few of them may all be the same by chance."""
        for weight in self._weights:
            address = _address(weight.tensor)
            if address != self._addresses[weight.name]:
                if digest_of(weight.tensor) != self._digests[weight.name]:
                    return weight.name
                self._addresses[weight.name] = address
        return None

    def refresh(self) -> str | None:
        """Compare every value at once; when all are as they were, the weights count as unchanged from then on.

        So a checkpoint that is loaded again does not end the use of the backend.

        Returns:
            Name of a tensor whose values changed, ``None`` when there is none.
        """
        with self._lock:
            named = named_parts(self._module)
            now = _weights_of(named)
            if self._interval is None:
                return None if self._same() else self._first_change()
            if [weight.name for weight in now] != [weight.name for weight in self._weights]:
                return self._other_part(named) or self._first_change()
            self._written = self._other_part(named) or self._hidden_change(now, digest_of, self._digests)
            if self._written is None:
                self._take_snapshot()
            return self._written


def _weights_of(parts: Sequence[tuple[str, torch.nn.Module]]) -> list[_Weight]:
    return [_Weight(joined(prefix, key), tensor) for prefix, part in parts for key, tensor in registered_tensors(part)]


def _plain_tensors(parts: Sequence[tuple[str, torch.nn.Module]]) -> list[_Weight]:
    return [
        _Weight(joined(prefix, key), tensor)
        for prefix, part in parts
        for key, tensor in plain_tensors(part)
        if not tensor.is_nested  # it has no shape to compare
    ]


def _plain_modules(part: torch.nn.Module) -> list[torch.nn.Module]:
    return [value for _, value in plain_values(part) if isinstance(value, torch.nn.Module)]


def _kind(part: torch.nn.Module) -> tuple[Any, ...]:
    """Return what decides how a part is run: its class, the forward of that, and the one of its own."""
    own = vars(part).get("forward")
    if isinstance(own, InterceptedForward):
        own = own.interception.forward_before
    return type(part), inspect.getattr_static(type(part), "forward", None), own


def _has_truth(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.numel() < 2


def _first_parameter(part: torch.nn.Module) -> torch.Tensor | None:
    tensors = (tensor for tensor in part._parameters.values() if tensor is not None and has_plain_values(tensor))
    # Integers stay where they are when the precision changes.
    return next((tensor for tensor in tensors if tensor.is_floating_point() or tensor.is_complex()), None)


def _address(tensor: torch.Tensor) -> int:
    return tensor.data_ptr() if has_plain_values(tensor) else 0
