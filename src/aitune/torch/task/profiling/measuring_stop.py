"""When the measurement of one batch size is done."""

from __future__ import annotations

import statistics
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

from aitune.torch.task.profiling.statistics import coefficient_of_variation, relative_half_width
from aitune.utils.validation import integer_at_least, positive_number, positive_seconds


@dataclass(frozen=True)
class MeasuringProgress:
    """How far a measurement has come.

    Args:
        times: Seconds of a call, as they were measured, the latest last; at least one.
        seconds: Time since the first of them began.
    """

    times: Sequence[float]
    seconds: float


class MeasuringStopStrategy(ABC):
    """Decides when one batch size is warm, and when it was measured long enough.

    A strategy keeps nothing between questions, so one object serves every measurement, in any order.
    """

    @abstractmethod
    def is_warm(self, progress: MeasuringProgress) -> bool:
        """Say whether warming up can end.

        Args:
            progress: The warm-up calls so far; they are not part of the result.
        """

    @abstractmethod
    def should_stop(self, progress: MeasuringProgress) -> bool:
        """Say whether measuring can end.

        Args:
            progress: The timed calls so far.
        """


@dataclass(frozen=True)
class NumStepsMeasuringStopStrategy(MeasuringStopStrategy):
    """Stops after a number of steps.

    Args:
        num_steps: Steps that are timed.
        warmup_samples: Calls before them.

    Raises:
        AITuneUserInputError: A number is out of range.
    """

    num_steps: int = 20
    warmup_samples: int = 10

    def __post_init__(self) -> None:
        _keep_integers(self, num_steps=1, warmup_samples=0)

    def is_warm(self, progress: MeasuringProgress) -> bool:
        """Say whether the warm-up calls are made."""
        return len(progress.times) >= self.warmup_samples

    def should_stop(self, progress: MeasuringProgress) -> bool:
        """Say whether the steps are made."""
        return len(progress.times) >= self.num_steps


@dataclass(frozen=True)
class StableWindowMeasuringStopStrategy(MeasuringStopStrategy):
    """Stops when the latest steps scatter little.

    Args:
        window_size: Steps that are looked at.
        max_cv_ratio: Largest coefficient of variation that counts as stable.
        warmup_samples: Calls before the first step.
        max_samples: Steps after which it stops in any case.

    Raises:
        AITuneUserInputError: A number is out of range.
    """

    window_size: int = 20
    max_cv_ratio: float = 0.10
    warmup_samples: int = 10
    max_samples: int = 100

    def __post_init__(self) -> None:
        _keep_integers(self, window_size=2, warmup_samples=0)
        _keep_integers(self, max_samples=self.window_size)
        positive_number(self.max_cv_ratio, "max_cv_ratio")

    def is_warm(self, progress: MeasuringProgress) -> bool:
        """Say whether the warm-up calls are made."""
        return len(progress.times) >= self.warmup_samples

    def should_stop(self, progress: MeasuringProgress) -> bool:
        """Say whether the latest window is stable, or there are too many steps."""
        if len(progress.times) >= self.max_samples:
            return True
        window = progress.times[-self.window_size :]
        return len(window) == self.window_size and coefficient_of_variation(window) <= self.max_cv_ratio


@dataclass(frozen=True)
class PrecisionMeasuringStopStrategy(MeasuringStopStrategy):
    """Stops when the median is known well enough, or time or steps run out; the default.

    Warming up ends when the calls get no faster: the median of the latest three is at least 95% of the one before.

    Args:
        max_relative_half_width: Precision at which it stops: half the interval of the median over the median.
        min_samples: Steps before precision is looked at.
        max_samples: Steps after which it stops in any case.
        min_seconds: Time before precision is looked at: calls that follow within a few milliseconds agree with each
            other better than with the calls of the next second.
        max_seconds: Time after which it stops with what there is.
        max_warmup_seconds: Time after which warming up ends in any case.

    Raises:
        AITuneUserInputError: A number is out of range.
    """

    max_relative_half_width: float = 0.01
    min_samples: int = 10
    max_samples: int = 1000
    min_seconds: float = 0.1
    max_seconds: float = 1.0
    max_warmup_seconds: float = 0.5

    def __post_init__(self) -> None:
        _keep_integers(self, min_samples=1)
        _keep_integers(self, max_samples=self.min_samples)
        positive_number(self.max_relative_half_width, "max_relative_half_width")
        for name in ("min_seconds", "max_seconds", "max_warmup_seconds"):
            positive_seconds(getattr(self, name), name)

    def is_warm(self, progress: MeasuringProgress) -> bool:
        """Say whether the calls get no faster, or warming up took too long."""
        if progress.seconds >= self.max_warmup_seconds:
            return True
        latest, before = progress.times[-3:], progress.times[-6:-3]
        return len(before) == 3 and statistics.median(latest) >= 0.95 * statistics.median(before)

    def should_stop(self, progress: MeasuringProgress) -> bool:
        """Say whether the median is known well enough, or time or steps ran out."""
        count = len(progress.times)
        if count >= self.max_samples or progress.seconds >= self.max_seconds:
            return True
        # Sorting after every step would cost more than the calls; every tenth is often enough.
        if count < self.min_samples or count % 10 != 0 or progress.seconds < self.min_seconds:
            return False
        return relative_half_width(progress.times) <= self.max_relative_half_width


def _keep_integers(settings: MeasuringStopStrategy, **smallest: int) -> None:
    # Integers of NumPy are kept as Python's: settings go into reports as plain data.
    for name, least in smallest.items():
        object.__setattr__(settings, name, integer_at_least(getattr(settings, name), name, least))
