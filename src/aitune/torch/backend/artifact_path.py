"""A file or folder that belongs to a backend's state."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from aitune.exceptions import ArtifactError


@dataclass(frozen=True)
class ArtifactPath:
    """A file or folder named relative to a root, so that the root can move.

    Args:
        root: Folder that holds the artifact.
        relative_path: Where it lies below the root.
        files: Paths below the root of the files that belong to it, as far as they are known.

    Raises:
        ArtifactError: The relative path is absolute or climbs out of the root.
    """

    root: Path
    relative_path: Path
    files: tuple[str, ...] = field(default=(), compare=False)

    def __post_init__(self) -> None:
        # Absolute: the current folder may be another one when the file is looked for.
        object.__setattr__(self, "root", Path(self.root).absolute())
        object.__setattr__(self, "relative_path", Path(self.relative_path))
        if self.relative_path.is_absolute() or ".." in self.relative_path.parts:
            raise ArtifactError(f"artifact path {self.relative_path} must stay below its root {self.root}")

    @classmethod
    def from_existing(cls, path: str | Path, root: str | Path) -> ArtifactPath:
        """Name an existing file or folder relative to ``root``, with the files that it has now.

        Args:
            path: The file or folder.
            root: A folder above it.

        Raises:
            ArtifactError: It does not exist, or does not lie below the root.
        """
        path, root = Path(path), Path(root)
        if not path.exists():
            raise ArtifactError(f"artifact {path} does not exist")
        try:
            relative = path.resolve().relative_to(root.resolve())
        except ValueError as error:
            raise ArtifactError(f"artifact {path} does not lie below {root}") from error
        found = [path] if path.is_file() else sorted(path.rglob("*"))
        files = [(relative / file.relative_to(path)).as_posix() for file in found if not file.is_dir()]
        return cls(root, relative, tuple(files))

    @property
    def path(self) -> Path:
        """The whole path."""
        return self.root / self.relative_path
