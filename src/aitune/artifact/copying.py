"""Copying and hashing ranges of open files, in pieces, so that memory stays small whatever a file's size."""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Iterator

_CHUNK = 1 << 20
_position_lock = threading.Lock()


def hash_range(file: int, offset: int, size: int) -> str:
    """Return the SHA-256 of a range of a file, in hexadecimal digits.

    Args:
        file: An open file descriptor.
        offset: Where the range begins.
        size: Bytes in it; fewer are hashed where the file ends before.
    """
    digest = hashlib.sha256()
    for piece in _pieces(file, offset, size):
        digest.update(piece)
    return digest.hexdigest()


def copy_range(source: int, offset: int, size: int, target: int) -> str:
    """Copy a range of a file to the position of another, and return the SHA-256 of what was written.

    Args:
        source: Open file descriptor to read.
        offset: Where the range begins.
        size: Bytes in it; fewer are copied where the file ends before.
        target: Open file descriptor to write, at its position.
    """
    digest = hashlib.sha256()
    for piece in _pieces(source, offset, size):
        # The piece is in memory of this process: nobody can change it between the hash and the write.
        digest.update(piece)
        left = piece
        while left:
            left = left[os.write(target, left) :]
    return digest.hexdigest()


def _pieces(file: int, offset: int, size: int) -> Iterator[memoryview]:
    buffer = memoryview(bytearray(min(size, _CHUNK)))
    end = offset + size
    while offset < end:
        count = _read_into(file, buffer[: min(end - offset, len(buffer))], offset)
        if count == 0:
            return
        yield buffer[:count]
        offset += count


def _read_into(file: int, buffer: memoryview, offset: int) -> int:
    if hasattr(os, "preadv"):
        return os.preadv(file, [buffer], offset)
    with _position_lock:
        os.lseek(file, offset, os.SEEK_SET)
        content = os.read(file, len(buffer))
    buffer[: len(content)] = content
    return len(content)
