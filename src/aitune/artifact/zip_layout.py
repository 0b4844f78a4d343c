"""The bytes of an artifact around its members: a zip in which every byte is determined by names, sizes and checksums.

Nothing is compressed; entries stand one behind the other in the order of the directory; dates, flags and comments are
fixed. So a reader writes the headers anew and compares: a byte that differs anywhere is damage or somebody else's zip.
The structures are those of PKWARE's APPNOTE 6.3.10, sections 4.3 (records) and 4.5.3 (ZIP64).
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from aitune.exceptions import ArtifactError

_LOCAL = struct.Struct("<4s5H3L2H")
_CENTRAL = struct.Struct("<4s6H3L5H2L")
_END = struct.Struct("<4s4H2LH")
_END64 = struct.Struct("<4sQ2H2L4Q")
_LOCATOR = struct.Struct("<4sLQL")
_VERSION, _VERSION64 = 20, 45
_FIRST_DATE = 0x21
_FULL16, _FULL32 = 0xFFFF, 0xFFFFFFFF
_ZIP64_FIELD = 0x0001
_PADDING_FIELD = 0xD935
_FIELD_HEADER = 4

ALIGNMENT = 4096
"""Large members begin at a multiple of this, so that file systems can share their blocks and programs map them."""
ALIGNED_FROM = 65536
"""Members of this size and above are aligned."""
LARGEST_DIRECTORY = 1 << 26
"""Bytes of the directory beyond which a file is refused, far above what a real one needs."""
LONGEST_NAME = 200


@dataclass(frozen=True)
class Entry:
    """One entry of the zip.

    Args:
        name: Its name, ASCII.
        size: Bytes of its content.
        crc32: CRC-32 of its content.
    """

    name: str
    size: int
    crc32: int


@dataclass(frozen=True)
class PlacedEntry:
    """An entry and where it stands.

    Args:
        entry: The entry.
        header_offset: Where its header begins.
        data_offset: Where its content begins.
    """

    entry: Entry
    header_offset: int
    data_offset: int

    @property
    def end(self) -> int:
        """Where the next entry, or the directory, begins."""
        return self.data_offset + self.entry.size


def place(entries: Sequence[Entry]) -> list[PlacedEntry]:
    """Give every entry its place, one behind the other.

    Args:
        entries: The entries in order.
    """
    placed: list[PlacedEntry] = []
    offset = 0
    for entry in entries:
        data_offset = offset + len(_local_header_parts(entry, offset))
        placed.append(PlacedEntry(entry, offset, data_offset))
        offset = data_offset + entry.size
    return placed


def local_header(placed: PlacedEntry) -> bytes:
    """Return the bytes in front of an entry's content."""
    return _local_header_parts(placed.entry, placed.header_offset)


def _local_header_parts(entry: Entry, offset: int) -> bytes:
    name = entry.name.encode("ascii")
    large = entry.size >= _FULL32
    extra = struct.pack("<2H2Q", _ZIP64_FIELD, 16, entry.size, entry.size) if large else b""
    if entry.size >= ALIGNED_FROM:
        missing = -(offset + _LOCAL.size + len(name) + len(extra)) % ALIGNMENT
        if 0 < missing < _FIELD_HEADER:
            missing += ALIGNMENT
        if missing:
            extra += struct.pack("<2H", _PADDING_FIELD, missing - _FIELD_HEADER) + bytes(missing - _FIELD_HEADER)
    size = _FULL32 if large else entry.size
    version = _VERSION64 if large else _VERSION
    head = _LOCAL.pack(
        b"PK\3\4", version, 0, 0, 0, _FIRST_DATE, entry.crc32, size, size, len(name), len(extra)
    )  # fmt: skip
    return head + name + extra


def directory(placed: Sequence[PlacedEntry]) -> bytes:
    """Return everything behind the last entry: the directory and the end records.

    Args:
        placed: All entries, in order.
    """
    start = placed[-1].end if placed else 0
    central = b"".join(_central_header(each) for each in placed)
    count, size = len(placed), len(central)
    tail = b""
    if count >= _FULL16 or size >= _FULL32 or start >= _FULL32:
        tail += _END64.pack(b"PK\6\6", 44, _VERSION64, _VERSION64, 0, 0, count, count, size, start)
        tail += _LOCATOR.pack(b"PK\6\7", 0, start + size, 1)
        count, size, start = min(count, _FULL16), min(size, _FULL32), min(start, _FULL32)
    return central + tail + _END.pack(b"PK\5\6", 0, 0, count, count, size, start, 0)


def _central_header(placed: PlacedEntry) -> bytes:
    entry = placed.entry
    name = entry.name.encode("ascii")
    values = [entry.size, entry.size, placed.header_offset]
    large = [value for value in values if value >= _FULL32]
    extra = struct.pack(f"<2H{len(large)}Q", _ZIP64_FIELD, 8 * len(large), *large) if large else b""
    size, _, offset = (min(value, _FULL32) for value in values)
    version = _VERSION64 if large else _VERSION
    return (
        _CENTRAL.pack(
            b"PK\1\2", version, version, 0, 0, 0, _FIRST_DATE, entry.crc32, size, size, len(name), len(extra),
            0, 0, 0, 0, offset,
        )
        + name
        + extra
    )  # fmt: skip


def read_layout(read_at: Callable[[int, int], bytes], file_size: int) -> list[PlacedEntry]:
    """Find the entries of a zip, and check that it is byte for byte laid out as described here.

    Args:
        read_at: Returns the bytes at an offset (first argument), a number of them (second), fewer at the end.
        file_size: Size of the file in bytes.

    Raises:
        ArtifactError: The file is not laid out so.
    """
    if file_size < _END.size:
        raise ArtifactError(f"it has {file_size} bytes, which is less than the smallest zip")
    begin = _directory_offset(read_at, file_size)
    if not 0 <= file_size - begin <= LARGEST_DIRECTORY:
        raise ArtifactError(f"its directory would begin at byte {begin} of {file_size}")
    tail = read_at(begin, file_size - begin)
    placed = place(_entries(tail))
    if (placed[-1].end if placed else 0) != begin:
        raise ArtifactError("the sizes in its directory do not add up to the place of the directory")
    if directory(placed) != tail:
        raise ArtifactError("its directory differs from the one that its entries have")
    for each in placed:
        header = local_header(each)
        if read_at(each.header_offset, len(header)) != header:
            raise ArtifactError(f"the header of entry {each.entry.name!r} differs from the directory")
    return placed


def _directory_offset(read_at: Callable[[int, int], bytes], file_size: int) -> int:
    end = _END.unpack(read_at(file_size - _END.size, _END.size))
    if end[0] != b"PK\5\6":
        raise ArtifactError("it does not end as a zip without a comment does: cut off, or not a zip")
    count, size, offset = end[4], end[5], end[6]
    if count < _FULL16 and size < _FULL32 and offset < _FULL32:
        return int(offset)
    at = file_size - _END.size - _LOCATOR.size - _END64.size
    record = _END64.unpack(read_at(at, _END64.size)) if at >= 0 else (b"",)
    if record[0] != b"PK\6\6":
        raise ArtifactError("its end refers to a ZIP64 record that is not there")
    return int(record[9])


def _entries(tail: bytes) -> list[Entry]:
    entries: list[Entry] = []
    position = 0
    while tail[position : position + 4] == b"PK\1\2":
        if position + _CENTRAL.size > len(tail):
            raise ArtifactError("its directory is cut off")
        fields = _CENTRAL.unpack_from(tail, position)
        crc32, size, name_length, extra_length = fields[7], fields[9], fields[10], fields[11]
        begin = position + _CENTRAL.size
        name, extra = tail[begin : begin + name_length], tail[begin + name_length : begin + name_length + extra_length]
        if not 0 < len(name) <= LONGEST_NAME or not name.isascii():
            raise ArtifactError(f"entry {len(entries)} has a name that no entry of an artifact has")
        if size == _FULL32 and len(extra) >= 12:
            size = struct.unpack_from("<Q", extra, _FIELD_HEADER)[0]
        entries.append(Entry(name.decode("ascii"), size, crc32))
        position = begin + name_length + extra_length
    return entries
