"""Datasets of every accepted kind as batches: the calls that a user's function is recorded with."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, default_collate, default_convert

from aitune.exceptions import AITuneUserInputError
from aitune.torch.collation import is_numpy, tensor_from_numpy
from aitune.torch.numbered_samples import (
    BYTES_FOR_EACH_SAMPLE,
    FullIterable,
    FullMap,
    NumberedCollate,
    guarded,
    require_memory,
)
from aitune.utils.validation import integer_at_least, positive_integer

DEFAULT_BATCH_SIZES = (1, 2)
"""Two sizes are the fewest that show which axes count the samples of a batch."""

GoesOn = Callable[[bool], bool]
"""Asked before each batch of a pass but the first: whether to go on. It is told whether other sizes may come yet."""

_KINDS = (
    "a tensor (one sample), a sequence of tensors, dicts, tuples or strings, a torch Dataset, a DataLoader, a "
    "DataLoaderFactory, or a function that takes a batch size and returns batches"
)


@dataclass(frozen=True, eq=False)
class Batch:
    """One call of the user's function.

    Args:
        batch_size: Samples in it.
        args: Positional arguments.
        kwargs: Keyword arguments.
    """

    batch_size: int
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


class DataLoaderFactory:
    """Makes a ``DataLoader`` over samples for any batch size.

    Samples come in the order of the dataset, nothing is shuffled. Every batch is full: where the samples run out, they
    are repeated from the first one.

    Args:
        dataset: A tensor (one sample, without a batch axis), a sequence of samples, or a torch ``Dataset`` of them.
        collate_fn: Makes a batch from a list of samples. Without it tensors, arrays and numbers are stacked, dicts,
            tuples and lists are collated by entry, and anything else (strings, images) stays a list.
        num_workers: Processes that read samples; 0 reads them in this one.

    Raises:
        AITuneUserInputError: The dataset is of another type or empty, or another argument is not usable.
    """

    def __init__(
        self, dataset: Any, collate_fn: Callable[[list[Any]], Any] | None = None, num_workers: int = 0
    ) -> None:
        if collate_fn is not None and not callable(collate_fn):
            raise AITuneUserInputError(f"collate_fn must be a function of a list of samples, got {collate_fn!r}")
        self.dataset = dataset
        self.collate_fn = collate_fn
        self.num_workers = integer_at_least(num_workers, "num_workers", 0)
        self._source = _sample_source(dataset)

    def create_dataloader(self, batch_size: int) -> DataLoader[Any]:
        """Make a loader.

        Args:
            batch_size: Samples in every batch.

        Returns:
            A loader whose batches all have that size. A sample that is a tuple or list (several inputs) is collated to
            a tuple.

        Raises:
            AITuneUserInputError: The batch size is no positive integer, or no such batch fits into memory.
        """
        size = positive_integer(batch_size, "batch size")
        # The indices and samples of a batch are listed before the first sample is read.
        require_memory(size, BYTES_FOR_EACH_SAMPLE)
        source: Dataset[Any]
        if isinstance(self._source, IterableDataset):
            source = FullIterable(self._source, size)
        else:
            source = FullMap(self._source, size)
        return DataLoader(
            source,
            batch_size=size,
            shuffle=False,
            num_workers=self.num_workers,
            collate_fn=NumberedCollate(self.collate_fn),
            # A loader draws a seed for its workers; taken from here, the user's random numbers stay as they were.
            generator=torch.Generator(),
        )


def iterate_batches(
    dataset: Any,
    batch_sizes: Sequence[int] | None = None,
    max_num_batches_per_batch_size: int | None = None,
    goes_on: GoesOn = lambda _: True,
) -> Iterator[Batch]:
    """Go through a dataset once for each batch size, smallest first.

    A dict batch becomes keyword arguments, a tuple or list of several inputs positional ones, anything else (a list of
    strings too) the only argument. Samples are read as they are needed.

    Args:
        dataset: What :class:`DataLoaderFactory` takes, or such a factory; a ``DataLoader``, whose own batches are used
            unless ``batch_sizes`` asks for others: then its dataset is read in order with its ``collate_fn``; or a
            function that takes a batch size and returns batches.
        batch_sizes: Batch sizes; ``None`` takes a ``DataLoader`` as it is, and 1 and 2 for anything else.
        max_num_batches_per_batch_size: Most batches of one size; ``None`` goes through all.
        goes_on: Ends the pass of a batch size, which need not have an end of its own.

    Returns:
        An iterator over the batches.

    Raises:
        AITuneUserInputError: An argument is not usable. While iterating: the dataset is empty or raises, or samples
            do not fit together; the message names the sample.
    """
    limit = max_num_batches_per_batch_size
    if limit is not None:
        limit = min(positive_integer(limit, "max_num_batches_per_batch_size"), sys.maxsize)
    sizes = None if batch_sizes is None else check_batch_sizes(batch_sizes)
    if isinstance(dataset, DataLoader):
        return _loader_batches(dataset, sizes, limit, goes_on)
    sizes = sizes if sizes is not None else DEFAULT_BATCH_SIZES
    if isinstance(dataset, DataLoaderFactory):
        return _factory_batches(dataset, sizes, limit, goes_on)
    if _is_batch_function(dataset):
        return _function_batches(dataset, sizes, limit, goes_on)
    return _factory_batches(DataLoaderFactory(dataset), sizes, limit, goes_on)


def check_batch_sizes(batch_sizes: Sequence[int]) -> tuple[int, ...]:
    """Return batch sizes in ascending order, each once.

    Args:
        batch_sizes: At least one positive integer.

    Raises:
        AITuneUserInputError: There is none, or one is no positive integer.
    """
    if isinstance(batch_sizes, str | bytes) or not isinstance(batch_sizes, Iterable):
        raise AITuneUserInputError(
            f"batch_sizes must be a list of positive integers such as [1, 8], got {batch_sizes!r}"
        )
    sizes = {positive_integer(size, "batch size") for size in guarded(batch_sizes, "batch_sizes")}
    if not sizes:
        raise AITuneUserInputError("batch_sizes is empty; give at least one, such as [1, 8], or leave it out")
    return tuple(sorted(sizes))


# -- sources of batches --------------------------------------------------------------------------------------------


def _until_ended(batches: Iterable[Any], limit: int | None, goes_on: Callable[[], bool]) -> Iterator[Any]:
    for position, batch in enumerate(islice(batches, limit)):
        if position and not goes_on():
            return
        yield batch


def _factory_batches(
    factory: DataLoaderFactory, sizes: Sequence[int], limit: int | None, goes_on: GoesOn
) -> Iterator[Batch]:
    for size in sizes:
        for batch in _until_ended(factory.create_dataloader(size), limit, lambda: goes_on(False)):
            args, kwargs = _as_call(batch, list_is_one_argument=factory.collate_fn is None)
            yield Batch(size, args, kwargs)


def _loader_batches(
    loader: DataLoader[Any], sizes: tuple[int, ...] | None, limit: int | None, goes_on: GoesOn
) -> Iterator[Batch]:
    if sizes is None or sizes == (loader.batch_size,):
        # The last batch may be a smaller one, and a sampler may give batches of any size.
        batches = _until_ended(guarded(loader, "the DataLoader"), limit, lambda: goes_on(True))
        return _labelled(batches, loader.batch_size, "the DataLoader")
    if isinstance(loader.dataset, IterableDataset):
        raise AITuneUserInputError(
            f"batch_sizes={list(sizes)} differ from the DataLoader's batch size {loader.batch_size}, and its "
            f"IterableDataset cannot be batched anew; leave batch_sizes out, or give a function that takes a batch "
            f"size and returns a DataLoader"
        )
    own = loader.collate_fn in (default_collate, default_convert)
    factory = DataLoaderFactory(loader.dataset, None if own else loader.collate_fn, loader.num_workers)
    return _factory_batches(factory, sizes, limit, goes_on)


def _function_batches(
    function: Callable[[int], Any], sizes: Sequence[int], limit: int | None, goes_on: GoesOn
) -> Iterator[Batch]:
    for size in sizes:
        source = f"the dataset function called with batch size {size}"
        try:
            batches = function(size)
        except Exception as error:
            raise AITuneUserInputError(f"{source} raised {type(error).__name__}: {error}") from error
        if isinstance(batches, torch.Tensor | Mapping | str | bytes) or not isinstance(batches, Iterable):
            raise AITuneUserInputError(
                f"{source} returned a {_type_name(batches)}; it must return an iterable of batches, such as a "
                f"DataLoader or a list"
            )
        yield from _labelled(_until_ended(guarded(batches, source), limit, lambda: goes_on(False)), size, source)


def _labelled(batches: Iterable[Any], requested: int | None, source: str) -> Iterator[Batch]:
    """Turn ready batches into calls, with the number of samples that each holds."""
    counts_samples: bool | None = None
    for position, batch in enumerate(batches):
        args, kwargs = _as_call(batch, list_is_one_argument=False)
        leading = _leading_size((*args, *kwargs.values()))
        if counts_samples is None:
            # A leading axis longer than the batch is something else, such as the time axis of a sequence.
            counts_samples = leading is not None and (requested is None or leading <= requested)
        size = leading if counts_samples else requested
        if size is None:
            raise AITuneUserInputError(
                f"batch {position} of {source} holds neither a tensor with an axis nor a list, so its batch size is "
                f"not known; give a function that takes a batch size and returns batches"
            )
        if size < 1:
            raise AITuneUserInputError(f"batch {position} of {source} has no samples; leave it out of the dataset")
        yield Batch(size, args, kwargs)
    if counts_samples is None:
        raise AITuneUserInputError(f"{source} gave no batches; give at least one sample")


# -- samples -------------------------------------------------------------------------------------------------------


class _OneSample:
    """A tensor as a sequence of one sample."""

    def __init__(self, sample: torch.Tensor) -> None:
        self._sample = sample

    def __len__(self) -> int:
        return 1

    def __getitem__(self, index: int) -> torch.Tensor:
        return self._sample


def _is_batch_function(dataset: Any) -> bool:
    if isinstance(dataset, torch.nn.Module):
        raise AITuneUserInputError(f"the dataset is a module ({_type_name(dataset)}); it must be {_KINDS}")
    return callable(dataset) and not isinstance(dataset, type | Dataset) and not hasattr(dataset, "__getitem__")


def _sample_source(dataset: Any) -> Any:
    """Return something with indices and a length, or an ``IterableDataset``."""
    if isinstance(dataset, torch.Tensor):
        return _OneSample(dataset)
    if is_numpy(dataset):
        return _OneSample(tensor_from_numpy(dataset, 0))
    if isinstance(dataset, IterableDataset):
        return dataset
    if isinstance(dataset, str | bytes):
        raise AITuneUserInputError(f"the dataset is one string, {dataset!r}; give a list of strings")
    if isinstance(dataset, Mapping):
        raise AITuneUserInputError("the dataset is one dict; give a list of dicts, one for each sample")
    if isinstance(dataset, type) or not (hasattr(dataset, "__getitem__") and hasattr(dataset, "__len__")):
        advice = "; put its items into a list" if isinstance(dataset, Iterable) else ""
        raise AITuneUserInputError(f"the dataset is a {_type_name(dataset)}; it must be {_KINDS}{advice}")
    try:
        length = len(dataset)
    except Exception as error:
        raise AITuneUserInputError(f"len() of the dataset raised {type(error).__name__}: {error}") from error
    if length == 0:
        raise AITuneUserInputError("the dataset is empty; give at least one sample")
    return dataset


# -- batches to calls ----------------------------------------------------------------------------------------------


def _as_call(batch: Any, list_is_one_argument: bool) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the arguments that a batch stands for.

    Args:
        batch: The batch.
        list_is_one_argument: Whether a list is one argument (samples that cannot be stacked) rather than several
            inputs; a list of strings always is.
    """
    if is_numpy(batch):
        batch = tensor_from_numpy(batch, 0)
    if isinstance(batch, Mapping):
        wrong = [key for key in batch if not isinstance(key, str)]
        if wrong:
            raise AITuneUserInputError(
                f"a dict batch becomes keyword arguments, so its keys must be strings, got {wrong[0]!r}"
            )
        return (), dict(batch)
    if isinstance(batch, tuple | list):
        if batch and all(isinstance(item, str) for item in batch):
            return (list(batch),), {}
        if isinstance(batch, tuple) or not list_is_one_argument:
            return tuple(batch), {}
    return (batch,), {}


def _leading_size(values: Iterable[Any]) -> int | None:
    """Return the size of the first axis of the first tensor, or the length of the first list of other things."""
    for value in values:
        if isinstance(value, torch.Tensor):
            size = value.shape[0] if value.dim() else None
        elif isinstance(value, Mapping):
            size = _leading_size(value.values())
        elif isinstance(value, tuple | list):
            holds_inputs = any(isinstance(item, torch.Tensor | Mapping | tuple | list) for item in value)
            size = _leading_size(value) if holds_inputs else len(value)
        else:
            size = None
        if size is not None:
            return size
    return None


def _type_name(value: Any) -> str:
    kind = value if isinstance(value, type) else type(value)
    return f"{kind.__module__}.{kind.__qualname__}"
