"""``ait.save`` and ``ait.load``: tuned modules to a file and back."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, Literal

import torch

from aitune.artifact.reading import Artifact
from aitune.artifact.signing import KeySource, public_bytes_of
from aitune.artifact.storage import LocalTorchStorage, Storage, scratch_folder, storage_for
from aitune.artifact.writing import ArtifactWriter
from aitune.exceptions import AITuneUserInputError
from aitune.torch.checkpoint.packing import PackingOptions, pack
from aitune.torch.checkpoint.unpacking import UnpackingOptions, unpack
from aitune.utils.error_text import error_line
from aitune.utils.external_logging import quiet_external_logging
from aitune.utils.validation import boolean, integer_at_least, one_of

__all__ = ["LocalTorchStorage", "load", "save"]


def save(
    module: Any,
    path: str | os.PathLike[str],
    storage: Storage | None = None,
    *,
    keep_alternatives: int = 1,
    include_original_weights: bool = False,
    sign: KeySource | None = None,
) -> None:
    """Write the tuned modules in an object to one file, whole or not at all.

    The file holds no pickle. A file that was there before is replaced in one step, so whoever reads it sees the old or
    the new one, also when the process is killed.

    Args:
        module: A tuned module, or a pipeline, mapping or sequence that holds some; what is not tuned is not stored.
        path: Path of the file, usually ``*.ait``, or an address that ``fsspec`` knows, such as ``s3://bucket/x.ait``.
        storage: Where paths are; by default local, or ``fsspec`` for an address.
        keep_alternatives: The next best builds that are stored for each graph, for machines that the chosen one does
            not fit.
        include_original_weights: Whether the module's own weights are stored; :func:`load` then puts them into the
            module that it is given.
        sign: Ed25519 private key to sign with: an object of ``cryptography``, 32 raw bytes, or the path of a PEM file.

    Raises:
        AITuneUserInputError: There is no tuned module, or an argument is not usable.
        ArtifactError: A module cannot be stored, or the file cannot be written.
        AITuneEnvironmentError: A package that the storage or the signature needs is not installed.
    """
    keep_alternatives = integer_at_least(keep_alternatives, "keep_alternatives", 0)
    boolean(include_original_weights, "include_original_weights")
    _check_storage(storage)
    if sign is not None:
        # A key that cannot be used shows before anything is done.
        public_bytes_of(sign)
    text = _path_text(path)
    writer = ArtifactWriter()
    place = storage if storage is not None else storage_for(text)
    with scratch_folder() as scratch:
        options = PackingOptions(keep_alternatives, include_original_weights)
        manifest = pack(module, writer, scratch, options)
        place.store(text, lambda stream: writer.write(stream, manifest, sign))


def load(  # noqa: PLR0913 - the published signature, and our additions by keyword
    module: Any,
    path: str | os.PathLike[str],
    storage: Storage | None = None,
    device_map: torch.device | str | Mapping[str, torch.device | str] | None = None,
    disable_external_logging: bool = True,
    *,
    verify: Literal["full", "lazy"] = "full",
    allow_native_code: bool = True,
    strict: bool = False,
    verify_key: KeySource | None = None,
) -> Any:
    """Let modules run on what :func:`save` stored. Every byte is checked before it is used.

    A build that does not fit this machine or its versions is replaced by the next one in the file, at last by the
    original module, with a warning.

    Args:
        module: What was saved, with its original modules: same classes, same weights (or any, when the file holds the
            weights). ``None`` loads without them: calls outside the tuned graphs are then errors.
        path: Path or address of the file.
        storage: Where paths are; by default local, or ``fsspec`` for an address.
        device_map: Device to serve on, for all modules or by name of the module; ``None`` takes the one of the tuning.
        disable_external_logging: Whether exporters and compilers may log errors alone meanwhile.
        verify: ``"full"`` checks the hash of everything in the file, ``"lazy"`` of what is used on this machine.
        allow_native_code: Whether machine code in the file may be run (AOTInductor libraries).
        strict: Whether it is an error when the best build of a graph cannot be used.
        verify_key: Ed25519 public key that must have signed the file; ``None`` asks for no signature.

    Returns:
        The wrapper of the module; for a pipeline the pipeline itself, with its modules tuned. Without a module: a
        callable with the recorded signature, or a dict of them by name when the file holds several.

    Raises:
        ArtifactError: The file is missing, damaged, not signed with the key, or does not belong to the module. Every
            module is then as it was before.
        AITuneEnvironmentError: No build fits this machine and there is no original, or the best one does not and
            ``strict`` is set.
        AITuneUserInputError: An argument is not usable.
    """
    one_of(verify, "verify", ("full", "lazy"))
    for flag, what in (
        (disable_external_logging, "disable_external_logging"),
        (allow_native_code, "allow_native_code"),
        (strict, "strict"),
    ):
        boolean(flag, what)
    _check_storage(storage)
    options = UnpackingOptions(verify, allow_native_code, strict, _devices(device_map))
    text = _path_text(path)
    place = storage if storage is not None else storage_for(text)
    with (
        quiet_external_logging(disable_external_logging),
        place.fetch(text) as local,
        Artifact(local, verify_key) as artifact,
    ):
        loaded = unpack(artifact, module, options)
        is_whole = not artifact.manifest.modules[0].place
    if module is None:
        return next(iter(loaded.values())) if len(loaded) == 1 else loaded
    return next(iter(loaded.values())) if is_whole and len(loaded) == 1 else module


def _check_storage(storage: Any) -> None:
    complete = all(callable(getattr(storage, method, None)) for method in ("store", "fetch"))
    if storage is not None and (isinstance(storage, type) or not complete):
        raise AITuneUserInputError(
            f"storage must be an object with store and fetch, such as ait.LocalTorchStorage(), got {storage!r}"
        )


def _path_text(path: Any) -> str:
    try:
        text = os.fspath(path)
    except TypeError as error:
        raise AITuneUserInputError(f"path must be a path or an address, got {path!r}") from error
    if not isinstance(text, str) or not text or "\0" in text:
        raise AITuneUserInputError(f"path must be a path or an address, got {path!r}")
    return text


def _devices(device_map: Any) -> dict[str, torch.device]:
    if device_map is None:
        return {}
    named = device_map if isinstance(device_map, Mapping) else {"": device_map}
    try:
        return {str(name): torch.device(device) for name, device in named.items()}
    except (RuntimeError, TypeError, ValueError) as error:
        raise AITuneUserInputError(
            f"device_map must be a device, or devices by name of the module, got {device_map!r}: {error_line(error)}"
        ) from error
