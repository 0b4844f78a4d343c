"""Strategies under a time budget, on a simulated machine."""

import re

import pytest
from strategy_parts import ORIGINAL, Bench, TimedBackend, comparison, outcome_of

from aitune.torch.tune_strategy import build_cost
from aitune.torch.tune_strategy.cost_history import CostHistory
from aitune.torch.tune_strategy.max_throughput_strategy import MaxThroughputStrategy


class CheapBackend(TimedBackend):
    """Its builds are known to be cheap."""


class TestTimeBudget:
    def test_a_candidate_that_cannot_end_in_time_is_not_begun(self, bench):
        backends = [bench.backend("a", 0.004), bench.backend("b", 0.003)]
        strategy = MaxThroughputStrategy(backends)
        assert bench.tune(strategy, deadline=bench.machine.now() + 10.0) == ORIGINAL
        assert strategy.report.reason == "the time budget left no time for any candidate"
        for label in "ab":
            outcome = outcome_of(strategy, label)
            assert outcome.status == "skipped"
            # Neither kind was built before: 20 s are expected, and 3 s or more to try it.
            assert re.match(r"not begun: it would take about 2\d s, and ", outcome.reason)

    def test_the_cheap_ones_come_first_and_the_report_keeps_the_order_of_the_list(self, bench, monkeypatch):
        monkeypatch.setitem(build_cost.USUAL_COSTS, "Cheap", build_cost.UsualCost(0.5))
        backends = [bench.backend("dear", 0.002), CheapBackend("cheap", bench.machine, 0.003)]
        strategy = MaxThroughputStrategy(backends)
        assert bench.tune(strategy, deadline=bench.machine.now() + 15.0) == "Fake(cheap)"
        assert [outcome.description for outcome in strategy.report.outcomes[1:]] == ["Fake(dear)", "Fake(cheap)"]
        assert outcome_of(strategy, "dear").reason.startswith("not begun: it would take about ")

    def test_what_builds_took_is_kept_for_the_next_run(self, bench):
        history = CostHistory()
        backends = [bench.backend("a", 0.004, build_seconds=0.1)]
        bench.tune(MaxThroughputStrategy(backends), cost_history=history)
        assert history.factor("Timed") == pytest.approx(0.1 / 20.0, rel=0.5)
        strategy = MaxThroughputStrategy([bench.backend("b", 0.004)])
        # Twenty seconds would be expected of a backend that was never built.
        assert bench.tune(strategy, deadline=bench.machine.now() + 12.0, cost_history=history) == "Fake(b)"

    def test_the_first_sets_the_pace_for_the_rest(self, bench):
        backends = [bench.backend("a", 0.004, build_seconds=0.1), bench.backend("b", 0.003)]
        strategy = MaxThroughputStrategy(backends)
        bench.tune(strategy, deadline=bench.machine.now() + 60.0)
        assert [outcome.status for outcome in strategy.backend_results] == ["ok", "ok", "ok"]

    def test_one_whose_build_takes_all_the_time_is_not_called_a_failure(self, bench):
        strategy = MaxThroughputStrategy([bench.backend("a", 0.004, build_takes=100.0), bench.backend("b", 0.003)])
        assert bench.tune(strategy, deadline=bench.machine.now() + 60.0) == ORIGINAL
        assert strategy.report.reason == "the time budget left no time for any candidate"
        outcome = outcome_of(strategy, "a")
        assert (outcome.status, outcome.stage) == ("skipped", "check")
        assert "the time budget was spent before it could be measured" in outcome.reason
        assert outcome_of(strategy, "b").reason.endswith("0 s of the time budget are left")

    def test_what_was_built_in_the_last_moment_is_measured_and_may_win(self, bench):
        class Late(TimedBackend):
            """Its build ends a moment before the time is up."""

            def _build(self, *args):
                self._machine.sleep(end - 0.05 - self._machine.now())
                return super()._build(*args)

        end = bench.machine.now() + 60.0
        strategy = MaxThroughputStrategy([Late("a", bench.machine, 0.002), bench.backend("b", 0.003)])
        assert bench.tune(strategy, deadline=end) == "Fake(a)"
        assert comparison(strategy, "a").verdict == "faster"
        assert outcome_of(strategy, "b").status == "skipped"
        assert bench.machine.now() < end + 5.0

    def test_the_original_is_measured_even_when_time_is_up(self, bench):
        strategy = MaxThroughputStrategy([bench.backend("a", 0.004)])
        assert bench.tune(strategy, deadline=bench.machine.now() - 1.0) == ORIGINAL
        assert strategy.backend_results[0].measurements

    def test_one_that_is_hopelessly_behind_is_not_swept_further(self, bench):
        backends = [bench.backend("hopeless", 0.05), bench.backend("fair", 0.006)]
        strategy = MaxThroughputStrategy(backends)
        sizes = (1, 2, 4, 8)
        bench.tune(strategy, sizes, sizes, deadline=bench.machine.now() + 600.0)
        assert [m.batch_size for m in outcome_of(strategy, "hopeless").measurements] == [1, 2]
        assert [m.batch_size for m in outcome_of(strategy, "fair").measurements] == [1, 2, 4, 8]

    def test_one_that_is_slow_on_a_single_sample_alone_is_given_its_chance(self, tmp_path):
        bench = Bench(tmp_path, seconds=0.001, per_sample=0.001)
        strategy = MaxThroughputStrategy([bench.backend("steady", 0.006, 0.0001)])
        sizes = (1, 2, 4, 16)
        assert bench.tune(strategy, sizes, sizes, deadline=bench.machine.now() + 600.0) == "Fake(steady)"
