from __future__ import annotations

import io
import zipfile
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aitune.artifact import zip_layout
from aitune.artifact.zip_layout import ALIGNED_FROM, ALIGNMENT, Entry, directory, local_header, place, read_layout
from aitune.exceptions import ArtifactError

NAMES = st.lists(st.text("abcxyz0189/._-", min_size=1, max_size=30), min_size=0, max_size=6, unique=True)


def written(contents: dict[str, bytes]) -> bytes:
    placed = place([Entry(name, len(content), zlib.crc32(content)) for name, content in contents.items()])
    bodies = (local_header(each) + contents[each.entry.name] for each in placed)
    return b"".join(bodies) + directory(placed)


def layout(content: bytes) -> list[zip_layout.PlacedEntry]:
    return read_layout(lambda offset, size: content[offset : offset + size], len(content))


@given(NAMES, st.data())
def test_what_is_written_is_read_here_and_by_other_programs(names: list[str], data: st.DataObject) -> None:
    sizes = st.sampled_from([0, 1, 100, ALIGNED_FROM - 1, ALIGNED_FROM, ALIGNED_FROM + 7])
    contents = {name: bytes([number]) * data.draw(sizes) for number, name in enumerate(names)}
    content = written(contents)
    assert [(e.entry.name, e.entry.size) for e in layout(content)] == [(n, len(c)) for n, c in contents.items()]
    for each in layout(content):
        found = content[each.data_offset : each.end]
        assert found == contents[each.entry.name]
        if each.entry.size >= ALIGNED_FROM:
            assert each.data_offset % ALIGNMENT == 0
    with zipfile.ZipFile(io.BytesIO(content)) as other:
        assert other.testzip() is None
        assert {name: other.read(name) for name in other.namelist()} == contents


def test_every_changed_byte_outside_the_contents_is_seen() -> None:
    contents = {"a": b"hello", "members/b": b"x" * ALIGNED_FROM}
    content = written(contents)
    inside = {p for e in layout(content) for p in range(e.data_offset, e.end)}
    positions = [p for p in range(len(content)) if p not in inside]
    assert len(positions) > 200
    for position in positions:
        for flip in (0x01, 0x80, 0xFF):
            changed = bytearray(content)
            changed[position] ^= flip
            with pytest.raises(ArtifactError):
                layout(bytes(changed))


@given(st.integers(0, 400))
def test_a_file_that_is_cut_off_is_refused(end: int) -> None:
    content = written({"a": b"hello", "b": b"world" * 20})
    if end < len(content):
        with pytest.raises(ArtifactError):
            layout(content[:end])


@given(st.binary(max_size=300))
def test_any_other_bytes_are_refused(content: bytes) -> None:
    with pytest.raises(ArtifactError):
        layout(content)


@pytest.mark.parametrize("compression", [zipfile.ZIP_DEFLATED, zipfile.ZIP_STORED])
def test_a_zip_of_another_program_is_refused(compression: int) -> None:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", compression) as other:
        other.writestr("manifest.json", "{}" * 100)
    with pytest.raises(ArtifactError):
        layout(buffer.getvalue())


def test_sizes_beyond_four_gigabytes_are_written_as_zip64() -> None:
    large = [Entry("small", 3, 1), Entry("large", 5 << 30, 2), Entry("behind", 7, 3)]
    placed = place(large)
    tail = directory(placed)
    begin = placed[-1].end
    headers = {each.header_offset: local_header(each) for each in placed}

    def read_at(offset: int, size: int) -> bytes:
        found = headers.get(offset, tail[offset - begin :] if offset >= begin else b"")
        return found[:size]

    assert [each.entry for each in read_layout(read_at, begin + len(tail))] == large
    with zipfile.ZipFile(SparseFile(headers, begin, tail)) as other:
        infos = {info.filename: (info.file_size, info.header_offset) for info in other.infolist()}
    assert infos == {each.entry.name: (each.entry.size, each.header_offset) for each in placed}


class SparseFile(io.RawIOBase):
    """A large file of which only some parts exist."""

    def __init__(self, headers: dict[int, bytes], begin: int, tail: bytes) -> None:
        self._headers, self._begin, self._tail, self._position = headers, begin, tail, 0

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = 0) -> int:
        base = (0, self._position, self._begin + len(self._tail))[whence]
        self._position = base + offset
        return self._position

    def read(self, size: int = -1) -> bytes:
        at = self._position
        content = self._headers.get(at, b"") if at < self._begin else self._tail[at - self._begin :]
        content = content if size < 0 else content[:size]
        self._position += len(content)
        return content
