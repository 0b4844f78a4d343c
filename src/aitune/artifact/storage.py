"""Where artifacts are kept: a local file, or any place that ``fsspec`` reaches."""

from __future__ import annotations

import errno
import glob
import os
import secrets
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO, Protocol

from aitune.exceptions import AITuneEnvironmentError, AITuneUserInputError, ArtifactError

Write = Callable[[BinaryIO], None]

_UNFINISHED = ".part"
_KEPT_OF_NAME = 50
_LEFT_AFTER_SECONDS = 60
"""A file that nobody has locked and nobody has written to for so long was left by a killed process."""


class Storage(Protocol):
    """What :func:`aitune.torch.save` and :func:`aitune.torch.load` need of a place."""

    def store(self, path: str, write: Write) -> None:
        """Let ``write`` write a file; whoever looks at ``path`` sees what was there before, or the whole new file.

        Args:
            path: Path of the file.
            write: Writes the file to a stream, from the front to the end.
        """

    def fetch(self, path: str) -> Any:
        """Return a context manager that gives the path of a local file with the content.

        Args:
            path: Path of the file.
        """


class LocalTorchStorage:
    """Files of this machine.

    Args:
        base_folder: Folder that relative paths are below; ``None`` takes the current one.
    """

    def __init__(self, base_folder: str | os.PathLike[str] | None = None) -> None:
        self.base_folder = None if base_folder is None else Path(base_folder)

    def _resolve(self, path: str) -> Path:
        return Path(path) if self.base_folder is None else self.base_folder / path

    def store(self, path: str, write: Write) -> None:
        """Write a file beside its place, make sure that it is on the disk, and put it into its place.

        A process that is killed meanwhile leaves an unfinished file beside the old one; the next call for the same
        path removes it.

        Args:
            path: Path of the file.
            write: Writes the file to a stream.

        Raises:
            ArtifactError: The file cannot be written there.
        """
        target = self._resolve(path)
        try:
            if target.is_dir() or path.endswith(("/", os.sep)):
                raise ArtifactError(f"{path} is a folder, expected the path of a file, such as {target / 'model.ait'}")
            if target.exists() and not target.is_file():
                # A device or a pipe would be gone, and a file in its place.
                raise ArtifactError(f"{path} is neither a file nor a folder, expected the path of a file")
            _write_atomically(target, write)
        except OSError as error:
            raise ArtifactError(f"{target} cannot be written: {_advice(error, target)}") from error

    @contextmanager
    def fetch(self, path: str) -> Iterator[Path]:
        """Give the path itself: the file is here.

        Args:
            path: Path of the file.
        """
        yield self._resolve(path)


class FsspecStorage:
    """Any place that ``fsspec`` reaches (``memory://``, ``s3://``, ``gs://`` and so on), through its own libraries.

    Args:
        base: Address that relative paths are below, such as ``"s3://bucket/models"``; ``None`` takes whole addresses.
        options: Options for the file system, such as credentials.
    """

    def __init__(self, base: str | None = None, **options: Any) -> None:
        self.base = base
        self.options = options

    def _locate(self, path: str) -> tuple[Any, str]:
        try:
            import fsspec
        except ImportError as error:
            raise AITuneEnvironmentError(
                f'{path} needs the package fsspec; run: pip install "aitune-open[remote]"'
            ) from error
        address = path if self.base is None or "://" in path else f"{self.base.rstrip('/')}/{path}"
        try:
            system, place = fsspec.core.url_to_fs(address, **self.options)
        except (ImportError, ValueError) as error:
            raise AITuneUserInputError(f"fsspec cannot reach {address}: {error}") from error
        return system, str(place)

    def store(self, path: str, write: Write) -> None:
        """Write the file here, upload it under another name, and move it into its place.

        Args:
            path: Address of the file.
            write: Writes the file to a stream.

        Raises:
            ArtifactError: The file cannot be written there.
        """
        system, place = self._locate(path)
        unfinished = f"{place}.{secrets.token_hex(6)}{_UNFINISHED}"
        with scratch_folder() as folder:
            local = folder / "artifact"
            try:
                with local.open("wb") as stream:
                    write(stream)
                if "/" in place:
                    system.makedirs(place.rsplit("/", 1)[0], exist_ok=True)
                try:
                    system.put_file(str(local), unfinished)
                    system.mv(unfinished, place)
                except BaseException:
                    with suppress(Exception):
                        system.rm(unfinished)
                    raise
            except OSError as error:
                raise ArtifactError(f"{path} cannot be written: {error}") from error

    @contextmanager
    def fetch(self, path: str) -> Iterator[Path]:
        """Download the file to a temporary folder, and give its path there.

        Args:
            path: Address of the file.

        Raises:
            ArtifactError: It cannot be read.
        """
        system, place = self._locate(path)
        with scratch_folder() as folder:
            local = folder / "artifact"
            try:
                system.get_file(place, str(local))
            except OSError as error:
                raise ArtifactError(f"{path} cannot be read: {error or type(error).__name__}") from error
            yield local


@contextmanager
def scratch_folder() -> Iterator[Path]:
    """Give an empty folder for temporary files, which is removed at the end.

    Raises:
        ArtifactError: There is no place for one.
    """
    try:
        folder = tempfile.TemporaryDirectory(prefix="aitune-")
    except OSError as error:
        raise ArtifactError(
            f"no folder for temporary files can be made ({error.strerror}: {error.filename}); set TMPDIR to a folder "
            f"that this user may write to"
        ) from error
    with folder as name:
        yield Path(name)


def storage_for(path: str | os.PathLike[str]) -> Storage:
    """Return the storage that a path asks for by its form: an address with ``://``, or a local path.

    Args:
        path: The path.
    """
    return FsspecStorage() if isinstance(path, str) and "://" in path else LocalTorchStorage()


def _write_atomically(target: Path, write: Write) -> None:
    # A link stays a link: the file that it points to is replaced.
    target = target.resolve()
    _remove_unfinished(target)
    unfinished = target.with_name(f"{_unfinished_prefix(target)}{secrets.token_hex(6)}{_UNFINISHED}")
    # Not a tempfile: the new file is to have the mode that a file made in the ordinary way has.
    descriptor = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0), 0o666)
    try:
        with os.fdopen(descriptor, "wb") as stream:
            _lock(stream.fileno())
            with suppress(OSError):
                os.chmod(unfinished, target.stat().st_mode & 0o7777)
            write(stream)
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(unfinished, target)
    except BaseException:
        with suppress(OSError):
            unfinished.unlink()
        raise
    _sync_folder(target.parent)


def _unfinished_prefix(target: Path) -> str:
    # Cut, because systems limit the length of a name, and the target may have the longest one.
    return f".{target.name[:_KEPT_OF_NAME]}."


def _lock(descriptor: int) -> bool:
    """Take the lock that says that somebody is still writing; ``False`` when another has it."""
    try:
        import fcntl
    except ImportError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def _remove_unfinished(target: Path) -> None:
    """Remove what killed processes left beside a file: nobody holds its lock any more."""
    for left in target.parent.glob(f"{glob.escape(_unfinished_prefix(target))}*{_UNFINISHED}"):
        with suppress(OSError), left.open("rb") as stream:
            age = time.time() - os.fstat(stream.fileno()).st_mtime
            if age > _LEFT_AFTER_SECONDS and _lock(stream.fileno()):
                left.unlink()


def _sync_folder(folder: Path) -> None:
    # Else the new name may be lost with the power. Not every system lets a folder be opened.
    with suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


_ADVICE = {
    errno.ENOENT: "its folder does not exist; make it first",
    errno.ENOTDIR: "its folder is a file",
    errno.EACCES: "permission denied; choose a folder that this user may write to",
    errno.EPERM: "permission denied; choose a folder that this user may write to",
    errno.ENAMETOOLONG: "its name is too long; choose a shorter one",
    errno.EROFS: "the file system is read-only; choose another folder",
    errno.ENOSPC: "no space is left on the device; what was there before is still there",
    errno.EDQUOT: "the quota of disk space is used up; what was there before is still there",
    errno.EFBIG: "files of this size are not allowed there; what was there before is still there",
}


def _advice(error: OSError, target: Path) -> str:
    return _ADVICE.get(error.errno or 0, f"{error.strerror or error} ({target})")
