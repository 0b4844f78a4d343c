"""Folders for builds: they live as long as what was built there is in use, and never longer than the process."""

from __future__ import annotations

import re
import shutil
import tempfile
import weakref
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path


class BuildFolders:
    """The build folders of one graph in one run.

    Args:
        root: Folder that they are made in.
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        self._folders: dict[str, Path] = {}
        # What was there before, empty or not, is not ours to remove.
        self._made = [folder for folder in (root, *root.parents) if not folder.exists()]

    def make(self, key: str) -> Path:
        """Make a folder that no other run shares.

        Args:
            key: Key of the backend that is built there.
        """
        self._root.mkdir(parents=True, exist_ok=True)
        prefix = re.sub(r"[^A-Za-z0-9._-]+", "_", key)[:80]
        folder = Path(tempfile.mkdtemp(prefix=f"{prefix}-", dir=self._root))
        self._folders[key] = folder
        return folder

    def keep_for(self, key: str, owner: object) -> None:
        """Keep the folder of one build until its owner is gone, at the latest until the process ends.

        Args:
            key: Key of the backend.
            owner: The backend that reads from the folder.
        """
        folder = self._folders.pop(key, None)
        if folder is not None:
            weakref.finalize(owner, _remove, folder, self._made)

    def remove_others(self) -> None:
        """Remove every folder that is not kept, and those around it that this run made and that are empty now."""
        for folder in self._folders.values():
            shutil.rmtree(folder, ignore_errors=True)
        self._folders.clear()
        _remove_empty(self._made)


def _remove(folder: Path, made: Sequence[Path]) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    _remove_empty(made)


def _remove_empty(folders: Sequence[Path]) -> None:
    for folder in folders:
        # Left alone when something else lies in it.
        with suppress(OSError):
            folder.rmdir()
