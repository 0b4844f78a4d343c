"""Parameters and buffers of a module: what they were, whether a module still has them, and their values in a file."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import torch

from aitune.artifact.manifest import TensorRecord
from aitune.exceptions import ArtifactError
from aitune.torch.module.tensor_digests import TensorDigests

WEIGHTS_FILE = "weights.safetensors"


def describe_tensors(module: torch.nn.Module, with_values: bool) -> tuple[TensorRecord, ...]:
    """Describe every parameter and buffer; those that are one tensor under two names come twice.

    Args:
        module: The module.
        with_values: Whether the values are hashed.
    """
    named = list(_named_tensors(module))
    hashes = TensorDigests().of([tensor for _, tensor in named]) if with_values else [None] * len(named)
    return tuple(
        TensorRecord(name=name, shape=tuple(tensor.shape), dtype=_dtype(tensor), sha256=sha256)
        for (name, tensor), sha256 in zip(named, hashes, strict=True)
    )


def first_difference(records: Sequence[TensorRecord], module: torch.nn.Module) -> str | None:
    """Say in what a module's architecture differs first from the described one; ``None`` when it is the same.

    Args:
        records: The parameters and buffers that it should have.
        module: The module.
    """
    found = dict(_named_tensors(module))
    for record in records:
        tensor = found.get(record.name)
        if tensor is None:
            return f"it has no parameter or buffer {record.name!r}"
        if tuple(tensor.shape) != record.shape or _dtype(tensor) != record.dtype:
            return (
                f"its {record.name!r} has shape {list(tensor.shape)} and dtype {_dtype(tensor)}, expected "
                f"{list(record.shape)} and {record.dtype}"
            )
    known = {record.name for record in records}
    extra = next((name for name in found if name not in known), None)
    return None if extra is None else f"it has {extra!r}, which the tuned module had not"


def tensors_with_hashes(records: Sequence[TensorRecord], module: torch.nn.Module) -> list[torch.Tensor]:
    """Return the parameters and buffers whose values are described, in the order of the records.

    Args:
        records: The parameters and buffers.
        module: A module of the same architecture.
    """
    found = dict(_named_tensors(module))
    return [found[record.name] for record in records if record.sha256 is not None]


def first_other_value(records: Sequence[TensorRecord], module: torch.nn.Module, digests: TensorDigests) -> str | None:
    """Return the name of the first parameter or buffer whose values are not the described ones, if there is one.

    Args:
        records: The parameters and buffers, with hashes.
        module: A module of the same architecture.
        digests: Hashes of the module's tensors as they are now.
    """
    hashed = [record for record in records if record.sha256 is not None]
    hashes = digests.of(tensors_with_hashes(records, module))
    return next((r.name for r, found_hash in zip(hashed, hashes, strict=True) if r.sha256 != found_hash), None)


def save_weights(module: torch.nn.Module, folder: Path) -> Path:
    """Write the parameters and buffers to a safetensors file; one tensor under two names is written once.

    Args:
        module: The module.
        folder: An existing folder.

    Raises:
        ArtifactError: A parameter has no plain values.
    """
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    first_names: dict[int, str] = {}
    tensors: dict[str, torch.Tensor] = {}
    for name, tensor in _named_tensors(module):
        if first_names.setdefault(id(tensor), name) == name:
            # Views of one memory are refused by the format: each gets its own.
            tensors[name] = tensor.detach().to("cpu", copy=True).contiguous()
    path = folder / WEIGHTS_FILE
    try:
        save_file(tensors, str(path))
    except (SafetensorError, OSError, ValueError, RuntimeError, KeyError) as error:
        raise ArtifactError(f"the original weights cannot be stored: {error}") from error
    return path


def current_values(module: torch.nn.Module) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Return every parameter and buffer with a copy of its values, for :func:`put_back`.

    Args:
        module: The module.
    """
    return [(tensor, tensor.detach().clone()) for _, tensor in _named_tensors(module)]


def put_back(values: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> None:
    """Give parameters and buffers the values that :func:`current_values` saw.

    Args:
        values: What it returned.
    """
    for tensor, before in values:
        _write(tensor, before)


def load_weights(module: torch.nn.Module, path: Path) -> None:
    """Put stored values into a module's parameters and buffers.

    Args:
        module: A module of the same architecture.
        path: What :func:`save_weights` wrote.

    Raises:
        ArtifactError: The file does not hold them.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        stored = load_file(str(path))
    except (SafetensorError, OSError) as error:
        raise ArtifactError(f"the stored weights cannot be read: {error}") from error
    written: set[int] = set()
    for name, tensor in _named_tensors(module):
        if name in stored:
            if stored[name].shape != tensor.shape or stored[name].dtype != tensor.dtype:
                raise ArtifactError(f"the stored weight {name!r} has another shape or dtype than the manifest says")
            _write(tensor, stored[name])
            written.add(id(tensor))
    missing = next((name for name, tensor in _named_tensors(module) if id(tensor) not in written), None)
    if missing is not None:
        raise ArtifactError(f"the stored weights lack {missing!r}")


def _write(tensor: torch.Tensor, values: torch.Tensor) -> None:
    # Inference tensors may be written to in that mode alone; in it, the writes to others would not be counted.
    with torch.inference_mode() if tensor.is_inference() else torch.no_grad():
        tensor.copy_(values)


def _named_tensors(module: torch.nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    yield from module.named_parameters(remove_duplicate=False)
    yield from module.named_buffers(remove_duplicate=False)


def _dtype(tensor: torch.Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")
