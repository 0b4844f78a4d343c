"""Hashes of the values of tensors: what weights were, without keeping them."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import torch

# One core is left to whoever goes on meanwhile: a runtime that loads its build.
_THREADS = max(1, min(4, (os.cpu_count() or 1) - 1))

_SAMPLES_PER_TENSOR = 64


class TensorDigests:
    """SHA-256 of tensors' values in row-major order, each tensor hashed once in the life of this object.

    Threads of its own hash, so the caller can do something else after :meth:`start`.
    """

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(_THREADS)
        # With the tensor: the identity of one that is gone could come back as that of another.
        self._found: dict[int, tuple[torch.Tensor, Future[str | None]]] = {}

    def start(self, tensors: Iterable[torch.Tensor]) -> None:
        """Begin to hash, and return at once.

        Args:
            tensors: Tensors of any shape, dtype and device.
        """
        for tensor in tensors:
            if id(tensor) not in self._found:
                self._found[id(tensor)] = (tensor, self._pool.submit(digest_of, tensor))

    def of(self, tensors: Sequence[torch.Tensor]) -> list[str | None]:
        """Return the hash of each tensor in hexadecimal digits, ``None`` where it has no plain values.

        Args:
            tensors: Tensors of any shape, dtype and device.
        """
        self.start(tensors)
        return [self._found[id(tensor)][1].result() for tensor in tensors]


def digest_of(tensor: torch.Tensor) -> str | None:
    """Return the SHA-256 of a tensor's values in row-major order, in hexadecimal digits.

    Args:
        tensor: A tensor of any shape, dtype and device.

    Returns:
        ``None`` for sparse, nested, quantised and meta tensors, and for tensors of a class with a layout of its own.
    """
    if not has_plain_values(tensor):
        return None
    content: Any = bytes_in_line(tensor).numpy()
    return hashlib.sha256(content).hexdigest()


def sample_of(tensor: torch.Tensor) -> bytes:
    """Return some of a tensor's values as bytes, spread over all of it: what a look that has to be cheap can compare.

    Args:
        tensor: A tensor of any shape, dtype and device; one without plain values gives nothing.
    """
    if not has_plain_values(tensor):
        return b""
    plain = tensor.detach()
    if plain.dim() > 1:
        # Axes in the order of their strides: one axis of a channels_last or transposed weight then needs no copy.
        plain = plain.permute(sorted(range(plain.dim()), key=lambda axis: -plain.stride()[axis]))
    line = plain.reshape(-1)
    return bytes_in_line(line[:: max(1, line.numel() // _SAMPLES_PER_TENSOR)]).numpy().tobytes()


def bytes_in_line(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor's values in row-major order as bytes: one axis of ``uint8`` on the CPU.

    Args:
        tensor: A tensor with plain values; nothing is copied where they lie so already.
    """
    line = tensor.detach().resolve_conj().resolve_neg().cpu().contiguous().reshape(-1)
    return line.view(torch.uint8) if line.numel() else torch.empty(0, dtype=torch.uint8)


def has_plain_values(tensor: torch.Tensor) -> bool:
    """Say whether a tensor's values lie in memory as its shape, dtype and strides say.

    Args:
        tensor: The tensor.
    """
    plain = type(tensor.data) in (torch.Tensor, torch.nn.Parameter) and tensor.layout is torch.strided
    return plain and not (tensor.is_quantized or tensor.is_meta or tensor.is_nested)
