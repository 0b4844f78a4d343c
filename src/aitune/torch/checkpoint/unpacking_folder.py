"""Folders that builds are unpacked to: they live as long as what reads from them, and never longer than the process."""

from __future__ import annotations

import tempfile
import weakref
from pathlib import Path

from aitune.exceptions import ArtifactError
from aitune.torch.config import config
from aitune.utils.process_folder import ProcessFolder

_PREFIX = "loaded-"


class UnpackingFolder:
    """An empty folder that nobody else can write to.

    It lies in the cache folder, or where that cannot be written to, in the system's folder for temporary files.

    Raises:
        ArtifactError: Neither can be written to.
    """

    def __init__(self) -> None:
        self._folder = self._make()
        self.path = self._folder.path

    @staticmethod
    def _make() -> ProcessFolder:
        cache = config.resolve_cache_dir().absolute() / "loaded"
        try:
            return ProcessFolder(cache, _PREFIX)
        except OSError:
            pass
        try:
            return ProcessFolder(Path(tempfile.gettempdir()), f"aitune-{_PREFIX}")
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
        self._folder.remove()
