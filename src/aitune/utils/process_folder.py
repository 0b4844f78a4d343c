"""Folders of one process in a folder that many share: they never outlive it, not even one that was killed."""

from __future__ import annotations

import os
import shutil
import tempfile
import weakref
from contextlib import suppress
from pathlib import Path

_LOCK = ".lock"


class ProcessFolder:
    """An empty folder that nobody else writes to, until this object is gone, at the latest until the process ends.

    A lock says that it is in use. Folders of the same prefix that a killed process left are removed on the way.

    Args:
        parent: Where it is made; made itself where it is missing.
        prefix: What its name begins with.

    Raises:
        OSError: It cannot be made.
    """

    def __init__(self, parent: Path, prefix: str) -> None:
        # Absolute: it is removed when the current folder may be another one.
        parent = parent.absolute()
        parent.mkdir(parents=True, exist_ok=True)
        _remove_abandoned(parent, prefix)
        root = Path(tempfile.mkdtemp(prefix=prefix, dir=parent))
        try:
            lock = _hold(root)
            self.path = root / "files"
            self.path.mkdir()
        except BaseException:
            shutil.rmtree(root, ignore_errors=True)
            raise
        self._remove = weakref.finalize(self, _remove, root, lock)

    def remove(self) -> None:
        """Remove the folder now."""
        self._remove()


def _hold(root: Path) -> int | None:
    """Lock a file of this process; it gets its name when it is locked, so that nobody sees it free."""
    try:
        import fcntl
    except ImportError:
        return None
    new = root / f"{_LOCK}-new"
    descriptor = os.open(new, os.O_RDWR | os.O_CREAT, 0o600)
    # Some network file systems have no locks: what is left there stays.
    with suppress(OSError):
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        new.rename(root / _LOCK)
    return descriptor


def _remove(root: Path, lock: int | None) -> None:
    shutil.rmtree(root, ignore_errors=True)
    if lock is not None:
        with suppress(OSError):
            os.close(lock)


def _remove_abandoned(parent: Path, prefix: str) -> None:
    try:
        import fcntl
    except ImportError:
        return
    for folder in parent.glob(f"{prefix}*"):
        with suppress(OSError):
            descriptor = os.open(folder / _LOCK, os.O_RDWR)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)
            finally:
                os.close(descriptor)
