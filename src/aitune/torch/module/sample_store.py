"""Recorded calls of one graph, kept on disk and read back memory-mapped."""

from __future__ import annotations

import shutil
import weakref
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, overload

import safetensors.torch
import torch

from aitune.torch.module.forward_signature import ForwardSignature
from aitune.torch.module.sample import Sample
from aitune.torch.module.sample_metadata import SampleMetadata
from aitune.utils.process_folder import ProcessFolder


@dataclass(frozen=True)
class _Entry:
    path: Path | None
    in_memory: tuple[torch.Tensor, ...]
    strides: tuple[tuple[int, ...], ...]
    metadata: SampleMetadata


class SampleStore(Sequence[Sample]):
    """A sequence of calls whose tensors lie in one folder; the folder goes when the store does.

    Args:
        folder: Folder of this store alone; made when the first sample comes.
        signature: How the forward is called.
        capacity: Most samples kept, one for each distinct set of shapes; later ones are left out.
        lease: What holds a folder around it for this process; it is not let go of before the samples are.
    """

    def __init__(
        self, folder: Path, signature: ForwardSignature, capacity: int, lease: ProcessFolder | None = None
    ) -> None:
        self._lease = lease
        self._folder = folder
        self._signature = signature
        self._capacity = capacity
        self._entries: dict[tuple[tuple[int, ...], ...], _Entry] = {}
        self._cleanup = weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)

    def wants(self, shapes: tuple[tuple[int, ...], ...]) -> bool:
        """Whether a call with these input shapes would be kept."""
        return shapes not in self._entries and len(self._entries) < self._capacity

    def add(self, named: dict[str, Any], metadata: SampleMetadata) -> None:
        """Keep a call as it is now; later changes of its tensors do not matter.

        Args:
            named: Arguments by parameter name.
            metadata: Their metadata.
        """
        tensors = metadata.tensors_of(named)
        shapes = tuple(tuple(tensor.shape) for tensor in tensors)
        if not self.wants(shapes):
            return
        strides = tuple(tuple(tensor.stride()) if tensor.layout is torch.strided else () for tensor in tensors)
        if not tensors or any(not _can_be_written(tensor) for tensor in tensors):
            copies = tuple(tensor.detach().clone() for tensor in tensors)
            self._entries[shapes] = _Entry(None, copies, strides, metadata)
            return
        self._folder.mkdir(parents=True, exist_ok=True)
        path = self._folder / f"sample-{len(self._entries):04d}.safetensors"
        # A tensor passed for two arguments is written twice: an exporter that saw one object would fuse the two.
        safetensors.torch.save_file({str(number): _contiguous(tensor) for number, tensor in enumerate(tensors)}, path)
        self._entries[shapes] = _Entry(path, (), strides, metadata)

    def discard(self) -> None:
        """Remove every sample from the disk."""
        self._entries.clear()
        self._cleanup()

    def __len__(self) -> int:
        return len(self._entries)

    @overload
    def __getitem__(self, index: int) -> Sample: ...
    @overload
    def __getitem__(self, index: slice) -> list[Sample]: ...
    def __getitem__(self, index: int | slice) -> Sample | list[Sample]:
        entries = list(self._entries.values())
        if isinstance(index, slice):
            return [self._read(entry) for entry in entries[index]]
        return self._read(entries[index])

    def __iter__(self) -> Iterator[Sample]:
        return (self._read(entry) for entry in list(self._entries.values()))

    def _read(self, entry: _Entry) -> Sample:
        if entry.path is None:
            tensors = [tensor.clone() for tensor in entry.in_memory]
        else:
            stored = safetensors.torch.load_file(entry.path, device="cpu")
            tensors = []
            for number, (spec, stride) in enumerate(zip(entry.metadata.tensor_specs, entry.strides, strict=True)):
                tensors.append(_with_strides(stored[str(number)].to(spec.device), stride))
        return self._signature.to_call(entry.metadata.rebuild(tensors))


def _contiguous(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().to("cpu").clone(memory_format=torch.contiguous_format)


def _can_be_written(tensor: torch.Tensor) -> bool:
    plain = tensor.layout is torch.strided and not tensor.is_quantized and not tensor.is_complex()
    return plain and type(tensor) in (torch.Tensor, torch.nn.Parameter)


def _with_strides(tensor: torch.Tensor, stride: tuple[int, ...]) -> torch.Tensor:
    # Overlapping layouts (an expanded tensor) cannot be written to; they come back contiguous.
    if stride == tensor.stride() or 0 in stride:
        return tensor
    restored = torch.empty_strided(tensor.shape, stride, dtype=tensor.dtype, device=tensor.device)
    return restored.copy_(tensor)
