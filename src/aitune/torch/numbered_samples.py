"""Samples in order, each with its index, so that every batch is full and every error names the sample."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import count
from typing import Any

from torch.utils.data import Dataset, IterableDataset

from aitune.exceptions import AITuneError, AITuneUserInputError
from aitune.torch.collation import collate_samples


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
        self._num_samples = len(source)
        self._length = math.ceil(self._num_samples / batch_size) * batch_size

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, position: int) -> Numbered:
        index = position % self._num_samples
        try:
            return Numbered(index, self._source[index])
        except AITuneError:
            raise
        except Exception as error:
            raise AITuneUserInputError(
                f"the dataset raised {type(error).__name__} at index {index}: {error}"
            ) from error


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
        if self._collate_fn is None:
            return collate_samples(samples, indices)
        try:
            return self._collate_fn(samples)
        except Exception as error:
            raise AITuneUserInputError(
                f"collate_fn raised {type(error).__name__} on samples {indices}: {error}"
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
