"""Folders that builds are unpacked to: they live as long as what reads from them, and never longer than the process."""

from __future__ import annotations

import os
import shutil
import tempfile
import weakref
from contextlib import suppress
from pathlib import Path

from aitune.exceptions import ArtifactError
from aitune.torch.config import config

_PREFIX = "loaded-"
_LOCK = ".lock"


class UnpackingFolder:
    """An empty folder that nobody else can write to.

    It lies in the cache folder, or where that cannot be written to, in the system's folder for temporary files. Folders
    that a killed process left in the cache are removed on the way.

    Raises:
        ArtifactError: Neither can be written to.
    """

    def __init__(self) -> None:
        self._root = self._make()
        self.path = self._root / "files"
        self.path.mkdir()
        lock = _hold(self._root / _LOCK)
        self._remove = weakref.finalize(self, _remove, self._root, lock)

    @staticmethod
    def _make() -> Path:
        # Absolute: it is removed when the current folder may be another one.
        cache = config.resolve_cache_dir().absolute() / "loaded"
        try:
            cache.mkdir(parents=True, exist_ok=True)
            _remove_abandoned(cache)
            return Path(tempfile.mkdtemp(prefix=_PREFIX, dir=cache))
        except OSError:
            pass
        try:
            return Path(tempfile.mkdtemp(prefix=f"aitune-{_PREFIX}"))
        except OSError as error:
            raise ArtifactError(
                f"no folder to unpack to: neither {cache} nor {tempfile.gettempdir()} can be written to "
                f"({error.strerror}); set AITUNE_CACHE_DIR to a folder that can"
            ) from error

    def keep_for(self, owner: object) -> None:
        """Keep the folder until an object is gone, at the latest until the process ends.

        Args:
            owner: What reads from the folder.
        """
        weakref.finalize(owner, self.remove)

    def remove(self) -> None:
        """Remove the folder now."""
        self._remove()


def _hold(path: Path) -> int | None:
    """Lock a file of this process, so that others see that the folder is in use."""
    try:
        import fcntl
    except ImportError:
        return None
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    with suppress(OSError):
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    return descriptor


def _remove(root: Path, lock: int | None) -> None:
    shutil.rmtree(root, ignore_errors=True)
    if lock is not None:
        with suppress(OSError):
            os.close(lock)


def _remove_abandoned(cache: Path) -> None:
    try:
        import fcntl
    except ImportError:
        return
    for folder in cache.glob(f"{_PREFIX}*"):
        with suppress(OSError):
            descriptor = os.open(folder / _LOCK, os.O_RDWR)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)
            finally:
                os.close(descriptor)
