"""The first candidate that is right and fast enough."""

import pytest
from strategy_parts import ORIGINAL, outcome_of

from aitune.testing.fakes import FakeBackend, add_offset
from aitune.torch.tune_strategy.first_wins_strategy import FirstWinsStrategy


class TestFirstWins:
    def test_the_first_that_is_faster_wins_and_later_ones_are_not_built(self, bench):
        backends = [
            FakeBackend("broken", fails_at="build"),
            FakeBackend("wrong", alter=add_offset),
            bench.backend("slow", 0.006),
            bench.backend("same", 0.005),
            bench.backend("good", 0.003),
            bench.backend("best", 0.001),
        ]
        strategy = FirstWinsStrategy(backends)
        assert bench.tune(strategy) == "Fake(good)"
        assert strategy.report.reason == "the first in the list that is clearly faster than the original module"
        statuses = [outcome.status for outcome in strategy.backend_results[1:]]
        assert statuses == ["failed", "rejected", "ok", "ok", "ok", "skipped"]
        assert outcome_of(strategy, "best").reason == "one before it won"

    def test_when_none_is_faster_the_original_stays(self, bench):
        strategy = FirstWinsStrategy([bench.backend("slow", 0.006), bench.backend("slower", 0.007)])
        assert bench.tune(strategy) == ORIGINAL
        assert strategy.report.reason.startswith("no candidate is clearly faster: the best, Fake(slow), runs at 0.8")

    @pytest.mark.parametrize("mode", ["disabled", "diagnostic"])
    def test_without_validation_the_first_that_works_wins(self, bench, mode):
        backends = [FakeBackend("broken", fails_at="build"), bench.backend("slow", 0.02), bench.backend("best", 0.001)]
        strategy = FirstWinsStrategy(backends).enable_performance_validation(mode)
        assert bench.tune(strategy) == "Fake(slow)"
        assert strategy.report.reason == "the first in the list that is usable"
