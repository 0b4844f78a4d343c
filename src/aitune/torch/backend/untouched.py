"""Runs and traces of a module that leave no trace in it."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

_CONTAINERS = (list, dict, set)


@contextmanager
def untouched(module: torch.nn.Module) -> Iterator[None]:
    """Put the module in eval mode without gradients, and put everything back afterwards.

    Restored are the attributes of every submodule (also those that hold a list, dict or set that was changed), the
    values of its buffers, the training flags and torch's random state. A trace runs the forward on fake tensors, and
    a forward that keeps one of them (a table of positions made at the first call, say) would be broken by it.

    Args:
        module: The module that is run inside the block.
    """
    saved = [_Saved(submodule) for submodule in module.modules()]
    buffers = [_SavedBuffer(tensor) for tensor in module.buffers()]
    devices = sorted({p.device.index or 0 for p in module.parameters() if p.device.type == "cuda"})
    with torch.random.fork_rng(devices=devices), torch.inference_mode(False), torch.no_grad():
        try:
            for submodule in module.modules():
                if submodule.training:
                    submodule.__dict__["training"] = False
            yield
        finally:
            for attributes in saved:
                attributes.restore()
            for buffer in buffers:
                buffer.restore()


class _Saved:
    """The attributes of one submodule, one level deep."""

    def __init__(self, module: torch.nn.Module) -> None:
        self.module = module
        self.attributes = dict(module.__dict__)
        self.contents = {
            name: copy.copy(value) for name, value in self.attributes.items() if isinstance(value, _CONTAINERS)
        }

    def restore(self) -> None:
        current = self.module.__dict__
        for name in [name for name in current if name not in self.attributes]:
            del current[name]
        for name, value in self.attributes.items():
            if name not in current or current[name] is not value:
                current[name] = value
        for name, content in self.contents.items():
            _restore_container(self.attributes[name], content)


def _restore_container(value: Any, content: Any) -> None:
    # What did not change is not written: compiled code notices that a dict was written to.
    if _elements(value) == _elements(content):
        return
    if isinstance(value, list):
        value[:] = content
    else:
        value.clear()
        value.update(content)


def _elements(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return [(key, id(item)) for key, item in value.items()]
    return [id(item) for item in value]


class _SavedBuffer:
    """The values of one buffer; written back only when they changed, so that version counters stay."""

    def __init__(self, buffer: torch.Tensor) -> None:
        self.buffer = buffer
        self.version = _version(buffer)
        self.values = None if buffer.is_meta else buffer.detach().clone()

    def restore(self) -> None:
        if self.values is not None and (self.version is None or _version(self.buffer) != self.version):
            self.buffer.copy_(self.values)


def _version(tensor: torch.Tensor) -> int | None:
    return None if tensor.is_inference() else tensor._version
