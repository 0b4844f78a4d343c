"""Samples to one batch: stacked where they are numbers, entry by entry where they are containers."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from aitune.exceptions import AITuneUserInputError


def collate_samples(samples: Sequence[Any], indices: Sequence[int]) -> Any:
    """Make a batch from samples without a batch axis.

    Tensors, arrays and numbers are stacked along a new first axis; dicts, tuples and lists are collated by entry; None
    stays None; anything else (strings, images) becomes a list with one entry for each sample. A sample that is itself
    a list holds several inputs: its batch is a tuple.

    Args:
        samples: At least one sample, all of one kind.
        indices: Index of each sample in the dataset, for messages.

    Raises:
        AITuneUserInputError: Two samples differ in kind, keys, length, dtype or shape; the message names them.
    """
    batch = _collate(list(samples), list(indices), "")
    return tuple(batch) if isinstance(samples[0], list) else batch


def _collate(samples: list[Any], indices: list[int], where: str) -> Any:
    """Stack tensors, arrays and numbers; collate containers by entry; keep anything else as a list.

    Args:
        samples: One value for each sample.
        indices: Index of each sample in the dataset.
        where: Entry of the samples that the values come from, for messages.
    """
    samples = [tensor_from_numpy(s, i) if is_numpy(s) else s for s, i in zip(samples, indices, strict=True)]
    first = samples[0]
    if isinstance(first, torch.Tensor):
        return _stack(samples, indices, where)
    if isinstance(first, int | float | complex):
        _require_same(
            samples, indices, where, "types", lambda s: "number" if isinstance(s, int | float | complex) else type(s)
        )
        try:
            return torch.tensor(samples)
        except (ValueError, OverflowError, RuntimeError) as error:
            raise AITuneUserInputError(
                f"samples {indices[0]} to {indices[-1]} hold a number{_place(where)} that no tensor can: {error}"
            ) from error
    if isinstance(first, Mapping):
        _require_same(samples, indices, where, "keys", lambda s: set(s) if isinstance(s, Mapping) else type(s))
        return {key: _collate([s[key] for s in samples], indices, f"{where}[{key!r}]") for key in first}
    if isinstance(first, tuple | list):
        _require_same(samples, indices, where, "lengths", lambda s: len(s) if isinstance(s, tuple | list) else type(s))
        entries = [_collate([s[entry] for s in samples], indices, f"{where}[{entry}]") for entry in range(len(first))]
        return _like(first, entries)
    _require_same(samples, indices, where, "types", type)
    return None if first is None else samples


def _like(container: Any, entries: list[Any]) -> Any:
    if hasattr(container, "_fields"):
        return type(container)(*entries)
    return tuple(entries) if isinstance(container, tuple) else entries


def _stack(samples: list[Any], indices: list[int], where: str) -> torch.Tensor:
    _require_same(samples, indices, where, "types", lambda s: isinstance(s, torch.Tensor) or type(s))
    _require_same(samples, indices, where, "dtypes", lambda tensor: tensor.dtype)
    _require_same(
        samples,
        indices,
        where,
        "shapes",
        lambda tensor: tuple(tensor.shape),
        advice="pad them to one length, give a DataLoaderFactory with a collate_fn that pads, or give strings and "
        "tokenise them in the function",
    )
    return torch.stack(samples)


def _require_same(
    samples: list[Any],
    indices: list[int],
    where: str,
    what: str,
    read: Callable[[Any], Any],
    advice: str = "give samples of one kind, or a DataLoaderFactory with a collate_fn",
) -> None:
    expected = read(samples[0])
    for sample, index in zip(samples, indices, strict=True):
        got = read(sample)
        if got != expected:
            raise AITuneUserInputError(
                f"samples {indices[0]} and {index} cannot be batched{_place(where)}: their {what} are {expected} "
                f"and {got}; {advice}"
            )


def _place(where: str) -> str:
    return f" at {where}" if where else ""


def is_numpy(value: Any) -> bool:
    """Whether a value is an array or a number of numpy; strings of numpy count as strings."""
    numpy = sys.modules.get("numpy")  # what was never imported cannot be among the samples
    return numpy is not None and isinstance(value, numpy.ndarray | numpy.generic) and not isinstance(value, str | bytes)


def tensor_from_numpy(array: Any, index: int) -> torch.Tensor:
    """Copy an array into a tensor of the same shape and dtype.

    Args:
        array: Array or number of numpy.
        index: Index of its sample in the dataset, for the message.

    Raises:
        AITuneUserInputError: torch has no such dtype.
    """
    try:
        return torch.tensor(array)
    except (TypeError, ValueError) as error:
        raise AITuneUserInputError(
            f"sample {index} is an array of dtype {array.dtype}, which has no tensor form: {error}"
        ) from error
