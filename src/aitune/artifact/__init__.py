"""The ``.ait`` file: what is in it, reading, checking and writing it. Nothing here imports torch.

The format is described in ``docs/format.md``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from aitune.utils.lazy_names import lazy_names

if TYPE_CHECKING:
    from aitune.artifact.manifest import FORMAT_VERSION, Manifest
    from aitune.artifact.reading import Artifact
    from aitune.artifact.storage import FsspecStorage, LocalTorchStorage, Storage
    from aitune.artifact.writing import ArtifactWriter

__all__ = [
    "FORMAT_VERSION",
    "Manifest",
    "Artifact",
    "ArtifactWriter",
    "Storage",
    "LocalTorchStorage",
    "FsspecStorage",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "manifest": ("FORMAT_VERSION", "Manifest"),
        "reading": ("Artifact",),
        "storage": ("FsspecStorage", "LocalTorchStorage", "Storage"),
        "writing": ("ArtifactWriter",),
    },
)
