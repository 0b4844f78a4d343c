import subprocess
import sys

import pytest

from aitune.exceptions import AITuneUserInputError
from aitune.torch.task import profiling
from aitune.torch.task.profiling import (
    ModelExecutionTimeMeasuringStrategy,
    PrecisionMeasuringStopStrategy,
    ProfilingConfig,
    ThroughputSaturatedProfilingStopStrategy,
)


def test_the_sweep_goes_upwards_and_takes_each_size_once():
    assert ProfilingConfig([8, 1, 8, 2]).sweep == (1, 2, 8)


def test_without_batching_one_size_is_measured():
    assert ProfilingConfig([8, 1], batching=False).sweep == (1,)
    assert ProfilingConfig([4], batching=False).sweep == (4,)


def test_defaults_hold_where_nothing_is_given():
    config = ProfilingConfig((1,))
    assert isinstance(config.measuring, ModelExecutionTimeMeasuringStrategy)
    assert isinstance(config.measurement_stop, PrecisionMeasuringStopStrategy)
    assert isinstance(config.profiling_stop, ThroughputSaturatedProfilingStopStrategy)


def test_the_list_of_the_caller_is_copied():
    sizes = [1, 2]
    config = ProfilingConfig(sizes)
    sizes.append(0)
    assert config.sweep == (1, 2)


@pytest.mark.parametrize("sizes", [[], (), None, "12", {1, 2}, [0], [-1], [1.0], [True], ["1"]])
def test_batch_sizes_that_make_no_sense_are_refused(sizes):
    with pytest.raises(AITuneUserInputError, match="batch size"):
        ProfilingConfig(sizes)


@pytest.mark.parametrize(
    "setting",
    [
        {"batching": "no"},
        {"measuring_strategy": "fast"},
        {"measurement_stop_strategy": 3},
        {"profiling_stop_strategy": ThroughputSaturatedProfilingStopStrategy},
    ],
    ids=lambda setting: next(iter(setting)),
)
def test_settings_of_another_kind_are_named(setting):
    with pytest.raises(AITuneUserInputError, match=next(iter(setting))):
        ProfilingConfig([1], **setting)


def test_the_facade_hands_on_every_published_name():
    for name in profiling.__all__:
        assert getattr(profiling, name).__name__ == name
    assert set(profiling.__all__) <= set(dir(profiling))
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        getattr(profiling, "nothing")  # noqa: B009


def test_profile_is_the_function_whatever_was_imported_first():
    code = (
        "import aitune.torch.task.profiling.sweep as s, aitune.torch.task.profiling as p; assert p.profile is s.profile"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
