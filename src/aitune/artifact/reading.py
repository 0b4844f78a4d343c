"""Reading an artifact: nothing of it is believed before it was checked, nothing is written but what was asked for."""

from __future__ import annotations

import os
import stat
import zipfile
import zlib
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from aitune.artifact.copying import copy_range, hash_range
from aitune.artifact.manifest import LARGEST_MANIFEST, FileRecord, Manifest, PartRecord, decode_manifest
from aitune.artifact.seal import LARGEST_SEAL, Seal, check_seal
from aitune.artifact.signing import KeySource
from aitune.artifact.writing import MANIFEST_NAME, MEMBER_PREFIX, SEAL_NAME
from aitune.artifact.zip_layout import PlacedEntry, read_layout
from aitune.exceptions import ArtifactError

_SCRATCH = ".members"
# More would wait for the memory: each reads, hashes and writes at some GB/s.
_THREADS = min(4, os.cpu_count() or 1)


class DamagedError(ArtifactError):
    """The bytes of an artifact are not those that were saved."""


class Artifact:
    """An opened artifact. Its manifest is read and checked at once, its members when they are used or asked for.

    Args:
        path: The file.
        verify_key: Ed25519 key that must have signed it; ``None`` asks for no signature.

    Raises:
        ArtifactError: It is not there, cannot be read, is no artifact, is damaged, or is not signed with that key.
    """

    def __init__(self, path: str | os.PathLike[str], verify_key: KeySource | None = None) -> None:
        self.path = Path(path)
        self._file = _open(self.path)
        try:
            self._entries = self._read_layout()
            text = self._read_small(MANIFEST_NAME, LARGEST_MANIFEST)
            seal_text = self._read_small(SEAL_NAME, LARGEST_SEAL)
            self.seal: Seal = check_seal(seal_text, text, verify_key)
            self.manifest: Manifest = decode_manifest(text)
            self._check_entries()
        except ArtifactError as error:
            self.close()
            raise ArtifactError(f"{self.path} cannot be used: {error.message}") from error
        except BaseException:
            self.close()
            raise
        self._verified: set[str] = set()

    def __enter__(self) -> Artifact:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)

    @property
    def size(self) -> int:
        """Bytes of the whole file."""
        return os.fstat(self._file).st_size

    # -- checking --------------------------------------------------------------------------------------------------

    def _read_at(self, offset: int, size: int) -> bytes:
        # One read gives at most 2 GiB; nothing larger than the directory is read in one piece.
        os.lseek(self._file, offset, os.SEEK_SET)
        return os.read(self._file, size)

    def _read_layout(self) -> dict[str, PlacedEntry]:
        try:
            placed = read_layout(self._read_at, self.size)
        except ArtifactError as error:
            raise ArtifactError(self._explain(error)) from error
        except OSError as error:
            raise ArtifactError(f"it cannot be read: {error.strerror}") from error
        entries = {each.entry.name: each for each in placed}
        if len(entries) != len(placed):
            raise ArtifactError("its zip has two entries of the same name")
        if not {MANIFEST_NAME, SEAL_NAME} <= set(entries):
            raise ArtifactError(f"it is a zip, but no artifact of aitune: it has no {MANIFEST_NAME} and {SEAL_NAME}")
        return entries

    def _explain(self, error: ArtifactError) -> str:
        """Say what the file is, if it is not laid out as an artifact."""
        if self.size == 0:
            return "it is empty"
        begin = self._read_at(0, 4)
        if begin[:2] != b"PK":
            return f"it is not a zip, and so no artifact: it begins with {begin!r}"
        with suppress(Exception), zipfile.ZipFile(self.path) as other:
            if MANIFEST_NAME not in other.namelist():
                return f"it is a zip, but no artifact of aitune: it has no {MANIFEST_NAME}"
        return f"it is damaged, or was packed again by another program: {error.message}; copy or save it again"

    def _read_small(self, name: str, largest: int) -> bytes:
        placed = self._entries[name]
        if placed.entry.size > largest:
            raise ArtifactError(f"its {name} has {placed.entry.size} bytes, expected at most {largest}")
        content = self._read_at(placed.data_offset, placed.entry.size)
        if len(content) != placed.entry.size or zlib.crc32(content) != placed.entry.crc32:
            raise ArtifactError(f"its {name} is damaged: the checksum differs; copy or save it again")
        return content

    def _check_entries(self) -> None:
        expected = {MEMBER_PREFIX + member.sha256: member.size for member in self.manifest.members}
        found = {name: e.entry.size for name, e in self._entries.items() if name not in (MANIFEST_NAME, SEAL_NAME)}
        for name in sorted({*expected, *found}):
            if expected.get(name) != found.get(name):
                raise ArtifactError(
                    f"entry {name!r} has {_bytes(found.get(name))}, its manifest says {_bytes(expected.get(name))}"
                )

    def verify(self, files: Iterable[FileRecord] | None = None) -> None:
        """Check the hash of every member, or of those that some files consist of; once for each.

        Args:
            files: The files; ``None`` checks everything.

        Raises:
            ArtifactError: A member is damaged.
        """
        wanted = [member.sha256 for member in self.manifest.members]
        if files is not None:
            wanted = list(dict.fromkeys(part.member for file in files for part in file.parts))
        pending = [sha256 for sha256 in wanted if sha256 not in self._verified]
        if not pending:
            return
        with ThreadPoolExecutor(_THREADS) as pool:
            hashes = list(pool.map(self._hash_member, pending))
        for sha256, found in zip(pending, hashes, strict=True):
            self._require_hash(sha256, found)
        self._verified.update(pending)

    def _hash_member(self, sha256: str) -> str:
        placed = self._entries[MEMBER_PREFIX + sha256]
        return hash_range(self._file, placed.data_offset, placed.entry.size)

    def _require_hash(self, sha256: str, found: str) -> None:
        if found != sha256:
            raise DamagedError(f"{self.path} is damaged: member {sha256} has the hash {found}; copy or save it again")

    # -- extracting ------------------------------------------------------------------------------------------------

    def extract(self, files: Sequence[FileRecord], folder: Path) -> None:
        """Write files to a folder; what was written is what was checked.

        Args:
            files: The files.
            folder: An empty folder that nobody else writes to.

        Raises:
            ArtifactError: A member is damaged, or the folder cannot be written to.
        """
        try:
            self._extract(files, folder)
        except OSError as error:
            raise ArtifactError(
                f"{self.path} cannot be unpacked to {folder} ({error.strerror}); its files need "
                f"{sum(file.size for file in files)} bytes there"
            ) from error

    def _extract(self, files: Sequence[FileRecord], folder: Path) -> None:
        whole: list[_Placement] = []
        ranges: list[_Placement] = []
        for file in files:
            target = folder.joinpath(*file.path.split("/"))
            target.parent.mkdir(parents=True, exist_ok=True)
            target.touch(exist_ok=False)
            position = 0
            for part in file.parts:
                (whole if self._is_whole(part) else ranges).append(_Placement(part, target, position))
                position += part.size
        self._place_members(whole)
        if ranges:
            self._place_ranges(ranges, folder / _SCRATCH)

    def _is_whole(self, part: PartRecord) -> bool:
        return part.offset == 0 and part.size == self._entries[MEMBER_PREFIX + part.member].entry.size

    def _place_members(self, placements: Sequence[_Placement]) -> None:
        with ThreadPoolExecutor(_THREADS) as pool:
            for placement, found in zip(placements, pool.map(self._place_member, placements), strict=True):
                self._require_hash(placement.part.member, found)
                self._verified.add(placement.part.member)

    def _place_member(self, placement: _Placement) -> str:
        placed = self._entries[MEMBER_PREFIX + placement.part.member]
        with placement.target.open("r+b", buffering=0) as out:
            out.seek(placement.position)
            return copy_range(self._file, placed.data_offset, placed.entry.size, out.fileno())

    def _place_ranges(self, placements: Sequence[_Placement], scratch: Path) -> None:
        """Write ranges of members, from copies that were checked."""
        scratch.mkdir()
        sizes = {p.part.member: self._entries[MEMBER_PREFIX + p.part.member].entry.size for p in placements}
        copies = {member: scratch / member for member in sizes}
        for copy in copies.values():
            copy.touch(exist_ok=False)
        wholes = [PartRecord(member=member, offset=0, size=size) for member, size in sizes.items()]
        self._place_members([_Placement(part, copies[part.member], 0) for part in wholes])
        for placement in placements:
            with copies[placement.part.member].open("rb") as source, placement.target.open("r+b", buffering=0) as out:
                out.seek(placement.position)
                copy_range(source.fileno(), placement.part.offset, placement.part.size, out.fileno())
        for copy in copies.values():
            copy.unlink()
        scratch.rmdir()


@dataclass(frozen=True)
class _Placement:
    part: PartRecord
    target: Path
    position: int


def _open(path: Path) -> int:
    expected = "expected a file that ait.save wrote"
    # Opening a pipe would wait for a writer.
    flags = os.O_RDONLY | getattr(os, "O_BINARY", 0) | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NONBLOCK", 0)
    try:
        if path.is_dir():
            raise ArtifactError(f"{path} is a folder, {expected}")
        file = os.open(path, flags)
        if not stat.S_ISREG(os.fstat(file).st_mode):
            os.close(file)
            raise ArtifactError(f"{path} is a device or a pipe, {expected}")
        return file
    except FileNotFoundError as error:
        raise ArtifactError(f"{path} does not exist, {expected}") from error
    except (OSError, ValueError) as error:
        raise ArtifactError(
            f"{path} cannot be read: {getattr(error, 'strerror', None) or error}; {expected}"
        ) from error


def _bytes(size: int | None) -> str:
    return "nothing" if size is None else f"{size} bytes"
