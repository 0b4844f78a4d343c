"""Find the largest batch size that a callable can run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from aitune.exceptions import AITuneUserInputError, ProfilingError
from aitune.torch.task.memory import is_out_of_memory, release_memory
from aitune.utils.validation import positive_integer

LimitedBy = Literal["limit", "memory", "error", "saturation", "time"]


@dataclass(frozen=True)
class BatchSizeTrial:
    """One batch size that was tried.

    Args:
        batch_size: Samples in the call.
        failure: Why it did not run; ``None`` when it did.
    """

    batch_size: int
    failure: str | None = None


@dataclass(frozen=True)
class MaxBatchSize:
    """Result of the search.

    Args:
        batch_size: Largest batch size that ran, and that was worth trying.
        limited_by: What ended the search.
        reason: The same in words.
        trials: Everything that was tried, in order.
    """

    batch_size: int
    limited_by: LimitedBy
    reason: str
    trials: tuple[BatchSizeTrial, ...]


def find_max_batch_size(
    run: Callable[[int], None],
    start: int,
    limit: int,
    *,
    is_saturated: Callable[[int], bool] | None = None,
    has_time: Callable[[int], bool] | None = None,
    resolution: int = 1,
) -> MaxBatchSize:
    """Double the batch size until it fails, then close in between the last good and the first bad one.

    Args:
        run: Runs one batch size, or raises.
        start: First batch size, at least 1.
        limit: Largest batch size to try, at least ``start``.
        is_saturated: Asked after each doubling that ran: whether larger batches are not worth trying.
        has_time: Asked before each batch size but the first: whether there is time to run it.
        resolution: How close, in samples, the good and the bad batch size must be at the end.

    Returns:
        The largest batch size that ran, and why it is not larger.

    Raises:
        AITuneUserInputError: ``start``, ``limit`` or ``resolution`` make no sense.
        ProfilingError: Not even ``start`` fits into memory; the cause is chained.
        Exception: Whatever ``run`` raised at ``start``, other than running out of memory.
    """
    _check_bounds(start, limit, resolution)
    search = _Search(run)
    good, bad = search.first(start), None
    while bad is None and good < limit:
        if is_saturated is not None and is_saturated(good):
            return search.result(good, "saturation", f"throughput no longer grows at batch size {good}")
        size = min(2 * good, limit)
        if has_time is not None and not has_time(size):
            return search.result(good, "time", f"there was no time to try batch size {size}")
        if search.runs(size):
            good = size
        else:
            bad = size
    if bad is None:
        return search.result(good, "limit", f"batch size {good} is the largest that was asked for")
    while bad - good > resolution:
        middle = (good + bad) // 2
        if has_time is not None and not has_time(middle):
            break
        if search.runs(middle):
            good = middle
        else:
            bad = middle
    limited_by, failure = search.failures[bad]
    return search.result(good, limited_by, f"batch size {bad} fails: {failure}")


class _Search:
    def __init__(self, run: Callable[[int], None]) -> None:
        self._run = run
        self._trials: list[BatchSizeTrial] = []
        self.failures: dict[int, tuple[LimitedBy, str]] = {}

    def first(self, size: int) -> int:
        try:
            self._run(size)
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            release_memory()
            raise ProfilingError(
                f"batch size {size}, the smallest one, does not fit into memory ({error}); expected it to run; "
                f"give smaller inputs, or a machine with more memory"
            ) from error
        self._trials.append(BatchSizeTrial(size))
        return size

    def runs(self, size: int) -> bool:
        failure: str | None = None
        try:
            self._run(size)
        except Exception as error:
            failure = f"{type(error).__name__}: {error}"
            self.failures[size] = ("memory" if is_out_of_memory(error) else "error", failure)
        if failure is not None:
            # Outside the handler: there the traceback still holds the tensors of the failed call.
            release_memory()
        self._trials.append(BatchSizeTrial(size, failure))
        return failure is None

    def result(self, size: int, limited_by: LimitedBy, reason: str) -> MaxBatchSize:
        return MaxBatchSize(size, limited_by, reason, tuple(self._trials))


def _check_bounds(start: int, limit: int, resolution: int) -> None:
    for name, value in (("start", start), ("limit", limit), ("resolution", resolution)):
        positive_integer(value, name)
    if limit < start:
        raise AITuneUserInputError(f"limit must be at least start={start}, got limit={limit}")
