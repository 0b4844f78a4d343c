"""How long a dataset may be read and run: a share of the time budget."""

from __future__ import annotations

import time

_RUNNING_SHARE = 0.25
"""Share of the time budget that may go to running the dataset; one batch of each size is run in any case."""

_READING_SHARE = 0.5
"""Share of the time budget within which batches are still read, and not run, for one of a size that was not run yet."""


class RecordingTime:
    """Says when recording has had its time.

    Args:
        time_budget: Seconds for the whole run; ``None`` for no limit.
        began: Moment at which the run began, in seconds of :func:`time.monotonic`.

    Attributes:
        is_cut_short: Whether something was left out.
    """

    def __init__(self, time_budget: float | None, began: float) -> None:
        self._time_budget = time_budget
        self._began = began
        self._run: set[int] = set()
        self.is_cut_short = False

    def goes_on(self, may_bring_other_sizes: bool) -> bool:
        """Say whether a pass over the dataset goes on; it need not have an end of its own.

        Args:
            may_bring_other_sizes: Whether its batches may have other sizes than those so far.
        """
        return self._is_within(_READING_SHARE if may_bring_other_sizes else _RUNNING_SHARE)

    def is_run(self, batch_size: int) -> bool:
        """Say whether a batch is run: the first of its size always is.

        Args:
            batch_size: Samples in it.
        """
        if batch_size in self._run:
            return self._is_within(_RUNNING_SHARE)
        self._run.add(batch_size)
        return True

    def _is_within(self, share: float) -> bool:
        if self._time_budget is None or time.monotonic() - self._began <= share * self._time_budget:
            return True
        self.is_cut_short = True
        return False
