"""One backend, as it is given."""

import pytest
from strategy_parts import ORIGINAL

from aitune.exceptions import (
    AITuneUserInputError,
    BackendUnavailableError,
    BuildError,
    CorrectnessError,
    ProfilingError,
    TuningError,
)
from aitune.testing.fakes import FakeBackend, add_offset
from aitune.torch.tune_strategy.one_backend_strategy import OneBackendStrategy


class TestOneBackend:
    def test_it_wins_when_it_is_faster(self, bench):
        assert bench.tune(OneBackendStrategy(bench.backend("a", 0.003))) == "Fake(a)"

    def test_slower_than_the_original_the_original_stays_and_that_is_said(self, bench):
        strategy = OneBackendStrategy(bench.backend("slow", 0.009))
        assert bench.tune(strategy) == ORIGINAL
        assert strategy.report.reason.startswith("no candidate is clearly faster: the best, Fake(slow), runs at 0.5")

    def test_slower_without_validation_it_is_used(self, bench):
        strategy = OneBackendStrategy(bench.backend("slow", 0.009)).enable_performance_validation(False)
        assert bench.tune(strategy) == "Fake(slow)"

    @pytest.mark.parametrize(
        ("backend", "error", "part"),
        [
            (FakeBackend("a", fails_at="build"), BuildError, "a fails at build on purpose"),
            (FakeBackend("a", fails_at="infer"), RuntimeError, "a fails at infer on purpose"),
            (FakeBackend("a", fails_at="can_run"), BackendUnavailableError, "a cannot run on purpose"),
            (FakeBackend("a", alter=add_offset), CorrectnessError, "allowed"),
        ],
        ids=["build", "infer", "unavailable", "wrong"],
    )
    @pytest.mark.parametrize("mode", ["enabled", "disabled"])
    def test_its_own_error_is_raised(self, bench, backend, error, part, mode):
        with pytest.raises(error, match=part):
            bench.tune(OneBackendStrategy(backend).enable_performance_validation(mode))

    def test_one_that_fails_while_it_is_measured_raises_its_error(self, bench):
        with pytest.raises(ProfilingError, match="worn out"):
            bench.tune(OneBackendStrategy(bench.backend("worn", 0.001, fails_after=60)))

    def test_no_time_for_it_is_an_error(self, bench):
        with pytest.raises(TuningError, match="time budget"):
            bench.tune(OneBackendStrategy(bench.backend("a", 0.001)), deadline=bench.machine.now() + 5.0)

    @pytest.mark.parametrize("given", [FakeBackend, "ONNXRuntime", None])
    def test_something_that_is_no_backend(self, given):
        with pytest.raises(AITuneUserInputError, match="backend"):
            OneBackendStrategy(given)
