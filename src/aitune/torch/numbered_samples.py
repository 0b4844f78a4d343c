"""Samples in order, each with its index, so that every batch is full and every error names the sample."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import count
from typing import Any

import torch
from torch.utils import _pytree as pytree
from torch.utils.data import Dataset, IterableDataset

from aitune.exceptions import AITuneError, AITuneUserInputError
from aitune.torch.collation import collate_samples, is_numpy
from aitune.utils.available_memory import available_memory

BYTES_FOR_EACH_SAMPLE = 128
"""What a sample of a batch takes beside its values: its index, and the object that numbers it."""


def require_memory(batch_size: int, sample_bytes: int) -> None:
    """Make sure that a batch fits into what memory is left, before any of it is taken.

    Args:
        batch_size: Samples in the batch.
        sample_bytes: Bytes of each.

    Raises:
        AITuneUserInputError: It does not fit.
    """
    available = available_memory()
    needed = batch_size * sample_bytes
    if available is not None and needed > available:
        raise AITuneUserInputError(
            f"batch size {batch_size} needs {needed / 2**30:.3g} GiB for its inputs alone, {available / 2**30:.3g} GiB "
            f"are available; give smaller batch_sizes"
        )


def _bytes_of(sample: Any) -> int:
    try:
        leaves = pytree.tree_leaves(sample)
    except RecursionError as error:
        raise AITuneUserInputError(
            "a sample holds itself, or containers that are nested too deeply; give tensors, dicts, tuples or strings"
        ) from error
    # What a sparse tensor takes is not worth asking for.
    dense = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor) and leaf.layout is torch.strided]
    return sum(int(array.nbytes) for array in (*dense, *filter(is_numpy, leaves))) + BYTES_FOR_EACH_SAMPLE


@dataclass(frozen=True)
class Numbered:
    """A sample with its index, so that an error can name it.

    Args:
        index: Position in the dataset.
        sample: What the dataset gave there.
    """

    index: int
    sample: Any


class FullMap(Dataset[Numbered]):
    """Samples by index, repeated from the first one until the last batch is full.

    Args:
        source: Anything with a length above 0 and indices.
        batch_size: Samples in a batch.
    """

    def __init__(self, source: Any, batch_size: int) -> None:
        self._source = source
        self._batch_size = batch_size
        self._is_checked = False
        self._num_samples = len(source)
        self._length = math.ceil(self._num_samples / batch_size) * batch_size

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, position: int) -> Numbered:
        index = position % self._num_samples
        try:
            sample = self._source[index]
        except AITuneError:
            raise
        except Exception as error:
            raise AITuneUserInputError(
                f"the dataset raised {type(error).__name__} at index {index}: {error}"
            ) from error
        if not self._is_checked:
            require_memory(self._batch_size, _bytes_of(sample))
            self._is_checked = True
        return Numbered(index, sample)


class FullIterable(IterableDataset[Numbered]):
    """Samples in the order given, repeated from the first one until the last batch is full.

    Args:
        source: Begins anew each time it is iterated.
        batch_size: Samples in a batch.
    """

    def __init__(self, source: Iterable[Any], batch_size: int) -> None:
        self._source = source
        self._batch_size = batch_size

    def __iter__(self) -> Iterator[Numbered]:
        first: list[Numbered] = []
        total = 0
        for index, sample in zip(count(), guarded(self._source, "the dataset"), strict=False):
            if not index:
                require_memory(self._batch_size, _bytes_of(sample))
            numbered = Numbered(index, sample)
            total = index + 1
            if len(first) < self._batch_size:
                first.append(numbered)
            yield numbered
        if not total:
            raise AITuneUserInputError(
                "the dataset gave no samples; give at least one, and let its __iter__ begin anew at each call"
            )
        for position in range(-total % self._batch_size):
            yield first[position % len(first)]


class NumberedCollate:
    """Makes a batch from numbered samples.

    Args:
        collate_fn: The user's function of a list of samples; ``None`` takes :func:`collate_samples`.
    """

    def __init__(self, collate_fn: Callable[[list[Any]], Any] | None) -> None:
        self._collate_fn = collate_fn

    def __call__(self, numbered: list[Numbered]) -> Any:
        """Make a batch; an error names the samples."""
        indices = [item.index for item in numbered]
        samples = [item.sample for item in numbered]
        try:
            return collate_samples(samples, indices) if self._collate_fn is None else self._collate_fn(samples)
        except AITuneError:
            raise
        except Exception as error:
            said = f"raised {type(error).__name__} on samples {indices}: {error}"
            if self._collate_fn is not None:
                raise AITuneUserInputError(f"collate_fn {said}") from error
            raise AITuneUserInputError(
                f"stacking {said}; give a DataLoaderFactory with a collate_fn that makes a batch of them"
            ) from error


def guarded(items: Iterable[Any], source: str) -> Iterator[Any]:
    """Iterate, with errors that say where they happened.

    Args:
        items: What is iterated.
        source: What it is, for the message.

    Raises:
        AITuneUserInputError: It raised; the message names the position.
    """
    position = 0
    try:
        iterator = iter(items)
        while True:
            try:
                item = next(iterator)
            except StopIteration:
                return
            yield item
            position += 1
    except AITuneError:
        raise
    except Exception as error:
        raise AITuneUserInputError(f"{source} raised {type(error).__name__} at index {position}: {error}") from error
