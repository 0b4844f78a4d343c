"""Copying and hashing ranges of open files, in pieces, so that memory stays small whatever a file's size."""

from __future__ import annotations

import hashlib
import os
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

_CHUNK = 1 << 20
_COPY_AT_ONCE = 8 << 20
_position_lock = threading.Lock()


def hash_range(file: int, offset: int, size: int) -> str:
    """Return the SHA-256 of a range of a file, in hexadecimal digits.

    Args:
        file: An open file descriptor; its position is not used where the system allows it.
        offset: Where the range begins.
        size: Bytes in it; fewer are hashed where the file ends before.
    """
    digest = hashlib.sha256()
    _hash_into(digest, file, offset, size)
    return digest.hexdigest()


def _hash_into(digest: hashlib._Hash, file: int, offset: int, size: int) -> None:
    buffer = memoryview(bytearray(min(size, _CHUNK)))
    end = offset + size
    while offset < end:
        count = _read_into(file, buffer[: min(end - offset, len(buffer))], offset)
        if count == 0:
            return
        digest.update(buffer[:count])
        offset += count


def copy_range(source: int, offset: int, size: int, target: int) -> str:
    """Copy a range of a file to the front of another, and return the SHA-256 of what then stands there.

    The kernel copies where it can, without bringing the bytes here, or shares the blocks; a piece is hashed while the
    next one is copied.

    Args:
        source: Open file descriptor to read.
        offset: Where the range begins.
        size: Bytes in it; fewer are copied where the file ends before.
        target: Open file descriptor of an empty file, to read and write.
    """
    digest = hashlib.sha256()
    done = 0
    with ThreadPoolExecutor(1) as pool:
        hashed = None
        while done < size:
            count = _copy_piece(source, offset + done, min(size - done, _COPY_AT_ONCE), target, done)
            if count == 0:
                break
            if hashed is not None:
                hashed.result()
            hashed = pool.submit(_hash_into, digest, target, done, count)
            done += count
        if hashed is not None:
            hashed.result()
    return digest.hexdigest()


def _copy_piece(source: int, offset: int, size: int, target: int, position: int) -> int:
    if sys.platform == "linux":
        try:
            return os.copy_file_range(source, target, size, offset, position)
        except OSError:
            # Not between these file systems, or not at all: the bytes go through here.
            pass
    buffer = memoryview(bytearray(min(size, _CHUNK)))
    count = _read_into(source, buffer, offset)
    _write_all(target, buffer[:count], position)
    return count


def _read_into(file: int, buffer: memoryview, offset: int) -> int:
    if hasattr(os, "preadv"):
        return os.preadv(file, [buffer], offset)
    with _position_lock:
        os.lseek(file, offset, os.SEEK_SET)
        content = os.read(file, len(buffer))
    buffer[: len(content)] = content
    return len(content)


def _write_all(file: int, content: memoryview, offset: int) -> None:
    with _position_lock:
        os.lseek(file, offset, os.SEEK_SET)
        while content:
            content = content[os.write(file, content) :]
