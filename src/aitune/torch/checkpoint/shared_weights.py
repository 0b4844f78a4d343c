"""Stores the weights of a module once, although several files of a build or of its alternatives hold them.

Runtimes keep weights byte for byte somewhere in their files, as ONNX and OpenVINO do. So each large weight is looked
for in each file; where its bytes are stored already, the file refers to them.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from aitune.artifact.manifest import FileRecord, PartRecord
from aitune.artifact.writing import LARGEST_MEMBER, ArtifactWriter, Range
from aitune.torch.module.tensor_digests import bytes_in_line, has_plain_values

SMALLEST_SHARED = 1 << 16
"""Bytes below which sharing a weight would cost more in the manifest than it saves."""
_PROBE = 256


@dataclass(frozen=True)
class _Found:
    weight: int
    offset: int
    size: int


class SharedWeights:
    """The weights of one module, and where each is stored.

    Files that are added first are stored whole, so that they are the fastest to load; later ones refer to them.

    Args:
        module: The module.
    """

    def __init__(self, module: torch.nn.Module) -> None:
        self._weights = list(_large_weights(module))
        self._places: dict[int, tuple[PartRecord, ...]] = {}

    def add_file(self, writer: ArtifactWriter, source: Path, path: str) -> FileRecord:
        """Add a file, and refer to stored bytes where it has the same.

        Args:
            writer: Takes the bytes that are new.
            source: The file on disk.
            path: Path that it has inside its build.
        """
        # Refuses what cannot be stored or read; and a small file is a part of no other.
        if not source.is_file() or source.stat().st_size < SMALLEST_SHARED:
            return writer.add_file(source, path)
        found = self._find_in(source)
        if any(each.weight in self._places for each in found):
            parts = self._parts_around(writer, source, [each for each in found if each.weight in self._places])
            file = FileRecord(path=path, parts=tuple(parts))
        else:
            file = writer.add_file(source, path)
        for each in found:
            self._places.setdefault(each.weight, _range_of(file.parts, each.offset, each.size))
        return file

    def _find_in(self, source: Path) -> list[_Found]:
        """Find the weights in a file, in the order of the file, none in another."""
        found: list[_Found] = []
        with source.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            # Files keep the order of the module more or less: the search goes on where the last one ended.
            begin = 0
            for number, weight in enumerate(self._weights):
                probe, size = _bytes(weight[:_PROBE]), weight.numel()
                offset = content.find(probe, begin)
                if offset < 0:
                    offset = content.find(probe, 0, begin + _PROBE)
                if offset >= 0 and content[offset : offset + size] == _bytes(weight):
                    found.append(_Found(number, offset, size))
                    begin = offset + size
        apart: list[_Found] = []
        for each in sorted(found, key=lambda each: each.offset):
            if not apart or each.offset >= apart[-1].offset + apart[-1].size:
                apart.append(each)
        return apart

    def _parts_around(self, writer: ArtifactWriter, source: Path, known: Sequence[_Found]) -> Iterator[PartRecord]:
        """Give the parts of a file: known weights where they are stored, and what is between them from new members."""
        gaps, position = [], 0
        for each in known:
            gaps.append(Range(position, each.offset - position))
            position = each.offset + each.size
        gaps.append(Range(position, source.stat().st_size - position))
        new = _NewMembers(writer, source, gaps)
        for number, each in enumerate(known):
            yield from new.parts_of(number)
            yield from self._places[each.weight]
        yield from new.parts_of(len(known))


class _NewMembers:
    """Ranges of a file, put together in members that are neither many nor large."""

    def __init__(self, writer: ArtifactWriter, source: Path, ranges: Sequence[Range]) -> None:
        self._sizes = [each.size for each in ranges]
        self._parts: list[PartRecord] = []
        for group in _grouped(ranges):
            member = writer.add_member(source, group)
            self._parts.append(PartRecord(member=member.sha256, offset=0, size=member.size))

    def parts_of(self, number: int) -> tuple[PartRecord, ...]:
        """Return the parts that hold one of the ranges."""
        return _range_of(self._parts, sum(self._sizes[:number]), self._sizes[number])


def _grouped(ranges: Sequence[Range]) -> Iterator[list[Range]]:
    group: list[Range] = []
    room = LARGEST_MEMBER
    for each in ranges:
        offset, left = each.offset, each.size
        while left:
            size = min(left, room)
            group.append(Range(offset, size))
            offset, left, room = offset + size, left - size, room - size
            if not room:
                yield group
                group, room = [], LARGEST_MEMBER
    if group:
        yield group


def _range_of(parts: Sequence[PartRecord], offset: int, size: int) -> tuple[PartRecord, ...]:
    """Return the parts that make up a range of a file.

    Args:
        parts: The parts of the file.
        offset: Where the range begins.
        size: Bytes in it.
    """
    chosen: list[PartRecord] = []
    for part in parts:
        if size and offset < part.size:
            taken = min(part.size - offset, size)
            chosen.append(PartRecord(member=part.member, offset=part.offset + offset, size=taken))
            offset, size = 0, size - taken
        else:
            offset -= min(offset, part.size)
    return tuple(chosen)


def _large_weights(module: torch.nn.Module) -> Iterator[torch.Tensor]:
    for tensor in (*module.parameters(), *module.buffers()):
        if has_plain_values(tensor) and tensor.nbytes >= SMALLEST_SHARED:
            yield bytes_in_line(tensor)


def _bytes(weight: torch.Tensor) -> bytes:
    return weight.numpy().tobytes()
