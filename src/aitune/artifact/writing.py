"""Writing an artifact: members are collected first, then everything goes out in one pass."""

from __future__ import annotations

import hashlib
import os
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from aitune.artifact.manifest import FileRecord, Manifest, MemberRecord, PartRecord, encode_manifest
from aitune.artifact.member_paths import why_unsafe
from aitune.artifact.seal import make_seal
from aitune.artifact.signing import KeySource
from aitune.artifact.zip_layout import Entry, directory, local_header, place
from aitune.exceptions import ArtifactError

MANIFEST_NAME = "manifest.json"
SEAL_NAME = "seal.json"
MEMBER_PREFIX = "members/"
_CHUNK = 1 << 20

LARGEST_MEMBER = 16 << 20
"""Larger files are stored as several members, so that they are checked by several threads."""


@dataclass(frozen=True)
class Range:
    """A range of bytes of a file on disk."""

    offset: int
    size: int


@dataclass(frozen=True)
class _Source:
    content: Path | bytes
    ranges: tuple[Range, ...]
    sha256: str
    crc32: int

    @property
    def size(self) -> int:
        return sum(each.size for each in self.ranges)

    def chunks(self) -> Iterator[bytes]:
        return _read(self.content, self.ranges)


class ArtifactWriter:
    """Collects the members of an artifact and writes it. Members with the same bytes are stored once.

    Files are read twice, when they are added and when they are written; they have to stay as they are meanwhile.
    """

    def __init__(self) -> None:
        self._sources: dict[str, _Source] = {}

    def add_file(self, source: Path, path: str) -> FileRecord:
        """Add a whole file.

        Args:
            source: The file on disk.
            path: Path that it has inside its build.

        Returns:
            Its record, for the manifest.

        Raises:
            ArtifactError: It cannot be read, or the path cannot be stored.
        """
        with _readable(source):
            size = source.stat().st_size
        pieces = [Range(offset, min(LARGEST_MEMBER, size - offset)) for offset in range(0, size, LARGEST_MEMBER)]
        members = [self.add_member(source, [piece]) for piece in pieces or [Range(0, 0)]]
        return FileRecord(path=_checked(path), parts=self._parts(members))

    def add_bytes(self, content: bytes, path: str) -> FileRecord:
        """Add bytes as a file; see :meth:`add_file`."""
        whole = (Range(0, len(content)),)
        return FileRecord(path=_checked(path), parts=self._parts([self._add(content, whole)]))

    def add_member(self, source: Path, ranges: Sequence[Range] | None = None) -> MemberRecord:
        """Add ranges of a file as one member.

        Args:
            source: The file on disk.
            ranges: What of it is stored, one behind the other; ``None`` stores all.

        Raises:
            ArtifactError: It cannot be read.
        """
        with _readable(source):
            whole = (Range(0, source.stat().st_size),)
            return self._add(source, tuple(ranges) if ranges is not None else whole)

    def _add(self, content: Path | bytes, ranges: tuple[Range, ...]) -> MemberRecord:
        digest, crc32 = hashlib.sha256(), 0
        for chunk in _read(content, ranges):
            digest.update(chunk)
            crc32 = zlib.crc32(chunk, crc32)
        source = _Source(content, ranges, digest.hexdigest(), crc32)
        source = self._sources.setdefault(source.sha256, source)
        return MemberRecord(sha256=source.sha256, size=source.size)

    @staticmethod
    def _parts(members: Sequence[MemberRecord]) -> tuple[PartRecord, ...]:
        return tuple(PartRecord(member=m.sha256, offset=0, size=m.size) for m in members)

    @property
    def members(self) -> tuple[MemberRecord, ...]:
        """The members so far, for the manifest."""
        return tuple(MemberRecord(sha256=source.sha256, size=source.size) for source in self._sources.values())

    def write(self, stream: BinaryIO, manifest: Manifest, private_key: KeySource | None = None) -> None:
        """Write the artifact.

        Args:
            stream: Where it goes; written from the front to the end, never sought in.
            manifest: Its manifest, with the members that are here.
            private_key: Ed25519 key to sign with; ``None`` leaves it unsigned.

        Raises:
            ArtifactError: The manifest has other members, cannot be stored, or a file changed since it was added.
            OSError: The stream cannot be written.
        """
        if manifest.members != self.members:
            raise ArtifactError("the manifest has other members than were added")
        text = encode_manifest(manifest)
        seal = make_seal(text, private_key)
        small = [(MANIFEST_NAME, text), (SEAL_NAME, seal)]
        sources = list(self._sources.values())
        placed = place(
            [Entry(MEMBER_PREFIX + source.sha256, source.size, source.crc32) for source in sources]
            + [Entry(name, len(content), zlib.crc32(content)) for name, content in small]
        )
        for each, source in zip(placed, sources, strict=False):
            stream.write(local_header(each))
            _copy(source, stream)
        for each, (_, content) in zip(placed[len(sources) :], small, strict=True):
            stream.write(local_header(each))
            stream.write(content)
        stream.write(directory(placed))


def _copy(source: _Source, stream: BinaryIO) -> None:
    digest = hashlib.sha256()
    for chunk in source.chunks():
        digest.update(chunk)
        stream.write(chunk)
    if digest.hexdigest() != source.sha256:
        raise ArtifactError(f"{source.content!r} changed while it was being saved; save again")


def _read(content: Path | bytes, ranges: Sequence[Range]) -> Iterator[bytes]:
    if isinstance(content, bytes):
        for each in ranges:
            yield content[each.offset : each.offset + each.size]
        return
    with _readable(content), content.open("rb") as file:
        for each in ranges:
            file.seek(each.offset)
            left = each.size
            while left:
                chunk = file.read(min(left, _CHUNK))
                if not chunk:
                    raise ArtifactError(f"{content} became shorter while it was being saved; save again")
                yield chunk
                left -= len(chunk)


@contextmanager
def _readable(source: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.filename is not None and os.fspath(error.filename) != str(source):
            raise
        raise ArtifactError(
            f"{source}, which belongs to the tuned module, cannot be read ({error.strerror}): was the cache cleared? "
            f"tune again"
        ) from error


def _checked(path: str) -> str:
    reason = why_unsafe(path)
    if reason is not None:
        raise ArtifactError(f"a file of a build cannot be stored: its path {path!r} {reason}")
    return path
