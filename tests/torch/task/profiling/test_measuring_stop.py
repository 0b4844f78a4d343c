import pytest

from aitune.exceptions import AITuneUserInputError
from aitune.torch.task.profiling import (
    NumStepsMeasuringStopStrategy,
    PrecisionMeasuringStopStrategy,
    StableWindowMeasuringStopStrategy,
)
from aitune.torch.task.profiling.measuring_stop import MeasuringProgress


def progress(times, seconds=None):
    return MeasuringProgress(times, sum(times) if seconds is None else seconds)


def test_num_steps_counts_warm_up_and_steps_apart():
    stop = NumStepsMeasuringStopStrategy(num_steps=3, warmup_samples=2)
    assert not stop.is_warm(progress([1.0]))
    assert stop.is_warm(progress([1.0, 1.0]))
    assert not stop.should_stop(progress([1.0, 1.0]))
    assert stop.should_stop(progress([1.0, 1.0, 1.0]))


def test_the_published_defaults():
    assert NumStepsMeasuringStopStrategy() == NumStepsMeasuringStopStrategy(20, 10)
    assert StableWindowMeasuringStopStrategy() == StableWindowMeasuringStopStrategy(20, 0.10, 10, 100)


def test_stable_window_looks_at_the_latest_steps_only():
    stop = StableWindowMeasuringStopStrategy(window_size=3, max_cv_ratio=0.1, warmup_samples=0, max_samples=50)
    assert not stop.should_stop(progress([1.0, 1.0]))
    assert not stop.should_stop(progress([1.0, 5.0, 1.0]))
    assert stop.should_stop(progress([9.0, 5.0, 1.0, 1.0, 1.05]))


def test_stable_window_gives_up_after_its_limit():
    stop = StableWindowMeasuringStopStrategy(window_size=2, max_cv_ratio=0.01, warmup_samples=0, max_samples=4)
    assert not stop.should_stop(progress([1.0, 9.0, 1.0]))
    assert stop.should_stop(progress([1.0, 9.0, 1.0, 9.0]))


def test_precision_is_warm_when_calls_get_no_faster():
    stop = PrecisionMeasuringStopStrategy(max_warmup_seconds=1000.0)
    assert not stop.is_warm(progress([1.0, 1.0, 1.0, 1.0, 1.0]))
    assert not stop.is_warm(progress([9.0, 5.0, 4.0, 3.0, 2.0, 1.0]))
    assert stop.is_warm(progress([9.0, 5.0, 1.0, 1.0, 1.0, 1.0, 1.0]))
    # A single outlier among the latest calls changes nothing.
    assert stop.is_warm(progress([1.0, 1.0, 1.0, 1.0, 7.0, 1.0]))


def test_precision_ends_warming_up_when_it_takes_too_long():
    assert PrecisionMeasuringStopStrategy(max_warmup_seconds=0.5).is_warm(progress([5.0]))


def test_precision_stops_when_the_median_is_known():
    stop = PrecisionMeasuringStopStrategy(max_relative_half_width=0.01, min_seconds=0.1, max_seconds=1e6)
    assert stop.should_stop(progress([1.0] * 10))
    assert not stop.should_stop(progress([1.0] * 5 + [2.0] * 5))
    assert not stop.should_stop(progress([1.0] * 9))


def test_precision_of_a_few_milliseconds_is_not_believed():
    stop = PrecisionMeasuringStopStrategy(min_seconds=0.1)
    assert not stop.should_stop(progress([1e-3] * 20))
    assert stop.should_stop(progress([1e-3] * 110))


@pytest.mark.parametrize(
    ("times", "seconds"), [([1.0, 2.0] * 500, 0.2), ([1.0, 2.0, 3.0], 1.0)], ids=["too many steps", "too much time"]
)
def test_precision_stops_in_any_case(times, seconds):
    assert PrecisionMeasuringStopStrategy(max_samples=1000, max_seconds=1.0).should_stop(progress(times, seconds))


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda: NumStepsMeasuringStopStrategy(num_steps=0), "num_steps must be an integer of at least 1, got 0"),
        (lambda: NumStepsMeasuringStopStrategy(warmup_samples=-1), "warmup_samples"),
        (lambda: NumStepsMeasuringStopStrategy(num_steps=True), "got True"),
        (lambda: StableWindowMeasuringStopStrategy(window_size=1), "window_size"),
        (lambda: StableWindowMeasuringStopStrategy(window_size=20, max_samples=19), "at least 20, got 19"),
        (lambda: StableWindowMeasuringStopStrategy(max_cv_ratio=0.0), "max_cv_ratio must be a positive number"),
        (
            lambda: PrecisionMeasuringStopStrategy(max_seconds=float("nan")),
            "max_seconds must be a positive .+, got nan",
        ),
        (lambda: PrecisionMeasuringStopStrategy(min_seconds="1"), "min_seconds must be a positive .+, got '1'"),
    ],
)
def test_numbers_out_of_range_are_named(make, told):
    with pytest.raises(AITuneUserInputError, match=told):
        make()
