"""The strategies of latency on a simulated machine."""

import random
import statistics

import pytest
from strategy_parts import ORIGINAL, Bench, outcome_of

from aitune.exceptions import (
    AITuneUserInputError,
    TuningError,
)
from aitune.testing.fakes import FakeBackend
from aitune.testing.simulated_machine import TYPICAL, Noise
from aitune.torch.task.profiling.config import ProfilingConfig
from aitune.torch.task.profiling.measuring_stop import NumStepsMeasuringStopStrategy
from aitune.torch.tune_strategy.latency_budget_strategy import LatencyBudgetStrategy
from aitune.torch.tune_strategy.min_latency_strategy import MinLatencyStrategy


class TestMinLatency:
    def test_the_soonest_answer_wins_at_the_smallest_recorded_batch_size(self, tmp_path):
        bench = Bench(tmp_path, seconds=0.004, per_sample=0.0005)
        backends = [bench.backend("soon", 0.001, 0.001), bench.backend("much", 0.0035, 0.00001)]
        strategy = MinLatencyStrategy(backends)
        assert bench.tune(strategy, batch_sizes=None, recorded=(2, 16)) == "Fake(soon)"
        assert [m.batch_size for m in outcome_of(strategy, "soon").measurements] == [2]
        assert strategy.batch_size_search is None
        assert bench.tune(MinLatencyStrategy(backends, batch_size=16), recorded=(2, 16)) == "Fake(much)"

    def test_ties_go_to_the_original(self, bench):
        assert bench.tune(MinLatencyStrategy([bench.backend("same", 0.005)])) == ORIGINAL

    def test_a_batch_size_outside_the_range_is_an_error(self, bench):
        with pytest.raises(AITuneUserInputError, match=r"batch_size=64 is outside the recorded range 2\.\.4"):
            bench.tune(MinLatencyStrategy([], batch_size=64))

    @pytest.mark.parametrize("batch_size", [0, -1, 1.5, True, "2"])
    def test_a_batch_size_that_is_none(self, batch_size):
        with pytest.raises(AITuneUserInputError, match="batch_size must be an integer of at least 1"):
            MinLatencyStrategy(batch_size=batch_size)

    def test_its_perf_results_say_how_many_times_faster(self, bench):
        strategy = MinLatencyStrategy([bench.backend("a", 0.0025)])
        bench.tune(strategy)
        assert strategy.perf_validation_results[0].speedup == pytest.approx(2.0, rel=0.05)


class TestLatencyBudget:
    """The original takes 1 ms and 1 ms a sample."""

    @pytest.fixture
    def bench(self, tmp_path):
        # Calls have a tail, and no drift: which batch size is within a budget must not depend on luck.
        return Bench(tmp_path, Noise(skew=0.03), seconds=0.001, per_sample=0.001)

    def tune(self, bench, strategy):
        return bench.tune(strategy, batch_sizes=(1, 2, 4, 8, 16), recorded=(1, 2, 4, 8, 16))

    def test_the_most_samples_a_second_within_the_budget(self, bench):
        backends = [bench.backend("a", 0.001, 0.0005), bench.backend("b", 0.0004, 0.0008)]
        strategy = LatencyBudgetStrategy(6.0, backends)
        assert self.tune(bench, strategy) == "Fake(a)"
        # 8 samples take 5 ms, 16 would take 9.
        assert strategy.report.reason.endswith("its best batch size within the budget is 8")

    def test_larger_batch_sizes_than_the_first_too_slow_one_are_not_measured(self, bench):
        strategy = LatencyBudgetStrategy(3.0, [bench.backend("a", 0.001, 0.0009)])
        self.tune(bench, strategy)
        assert [m.batch_size for m in outcome_of(strategy, "a").measurements] == [1, 2, 4]

    def test_nothing_within_the_budget_is_an_error_that_lists_the_best_latencies(self, bench):
        backends = [bench.backend("a", 0.002), bench.backend("b", 0.003), FakeBackend("c", fails_at="build")]
        for mode in ("enabled", "diagnostic"):
            strategy = LatencyBudgetStrategy(1.0, backends).enable_performance_validation(mode)
            with pytest.raises(TuningError) as caught:
                self.tune(bench, strategy)
            message = str(caught.value)
            for part in ("latency_budget_ms=1 ", "the original module: 2.", "Fake(a): 2.", "Fake(b): 3.", "ms"):
                assert part in message
            assert "c fails at build on purpose" in message

    def test_nothing_within_the_budget_without_validation(self, bench):
        strategy = LatencyBudgetStrategy(1.0, [bench.backend("a", 0.002)]).enable_performance_validation(False)
        with pytest.raises(TuningError, match=r"Fake\(a\): 2\.") as caught:
            self.tune(bench, strategy)
        assert "original" not in str(caught.value)

    def test_some_within_the_budget(self, bench):
        backends = [bench.backend("late", 0.030), bench.backend("good", 0.001, 0.0005)]
        strategy = LatencyBudgetStrategy(4.0, backends)
        assert self.tune(bench, strategy) == "Fake(good)"
        late = outcome_of(strategy, "late")
        assert late.status == "failed"
        assert late.reason.startswith("no batch size answers within 4 ms: the best latency is 3")
        assert [m.batch_size for m in late.measurements] == [1]

    def test_only_the_original_within_the_budget(self, bench):
        strategy = LatencyBudgetStrategy(2.5, [bench.backend("late", 0.030)])
        assert self.tune(bench, strategy) == ORIGINAL
        assert strategy.report.reason == "no candidate came through"

    def test_only_a_candidate_within_the_budget(self, bench):
        strategy = LatencyBudgetStrategy(1.0, [bench.backend("good", 0.0002, 0.0001), bench.backend("late", 0.03)])
        assert self.tune(bench, strategy) == "Fake(good)"
        assert strategy.report.reason.startswith("the original module does not answer within 1 ms, this one does")
        assert strategy.report.outcomes[0].is_baseline
        assert [m.batch_size for m in strategy.report.outcomes[0].measurements] == [1]

    def test_a_percentile_may_be_required_instead_of_the_median(self, tmp_path):
        def chosen(percentile):
            bench = Bench(tmp_path, Noise(skew=0.03), seconds=0.001, per_sample=0.001)
            strategy = LatencyBudgetStrategy(5.3, [], percentile=percentile)
            self.tune(bench, strategy)
            return strategy._baseline_result.selected_batch_size

        assert chosen(50) == 4
        assert chosen(99) == 2

    @pytest.mark.parametrize(
        ("percentile", "upper"), [(50, "high_ms"), (90, "p90_high_ms"), (99, "p99_high_ms")], ids=["p50", "p90", "p99"]
    )
    def test_the_upper_end_of_the_interval_has_to_be_within_the_budget(self, tmp_path, percentile, upper):
        def chosen(budget_ms):
            bench = Bench(tmp_path, Noise(skew=0.1), seconds=0.001, per_sample=0.001)
            strategy = LatencyBudgetStrategy(budget_ms, [], percentile=percentile)
            self.tune(bench, strategy)
            return strategy._baseline_result

        measured = next(m for m in chosen(1000.0).swept if m.batch_size == 4)
        limit = getattr(measured, upper)
        point = {50: measured.median_ms, 90: measured.p90_ms, 99: measured.p99_ms}[percentile]
        assert limit >= point
        # The sweep is the same each time, so the same call is just inside, and just outside although its point is not.
        assert chosen(limit).selected_batch_size == 4
        assert chosen(limit * (1.0 - 1e-9)).selected_batch_size == 2

    @pytest.mark.parametrize("seed", range(20))
    def test_a_tail_is_not_judged_by_few_calls(self, tmp_path, seed):
        bench = Bench(tmp_path, Noise(skew=0.03), seed, seconds=0.001, per_sample=0.001)
        strategy = LatencyBudgetStrategy(5.5, [], percentile=99)
        self.tune(bench, strategy)
        # The 99th percentile of five milliseconds with that noise is 5.69 ms.
        assert strategy._baseline_result.selected_batch_size == 2
        assert all(measured.num_calls >= 368 for measured in strategy._baseline_result.swept)

    def test_a_way_of_measuring_that_is_given_is_kept(self, tmp_path):
        bench = Bench(tmp_path, seconds=0.001, per_sample=0.001)
        given = ProfilingConfig(batch_sizes=[2], measurement_stop_strategy=NumStepsMeasuringStopStrategy(7, 1))
        strategy = LatencyBudgetStrategy(100.0, [], given, percentile=99)
        self.tune(bench, strategy)
        assert [measured.num_calls for measured in strategy._baseline_result.swept] == [7]

    @pytest.mark.parametrize("percentile", [50, 90, 99])
    def test_what_is_chosen_is_within_the_budget_when_it_is_measured_again(self, tmp_path, percentile):
        within = []
        draw = random.Random(0)
        for seed in range(20):
            bench = Bench(tmp_path, TYPICAL, seed, seconds=0.001, per_sample=0.001)
            budget_ms = draw.uniform(2.5, 20.0)
            strategy = LatencyBudgetStrategy(budget_ms, [], percentile=percentile)
            self.tune(bench, strategy)
            size = strategy._baseline_result.selected_batch_size
            again_ms = []
            while len(again_ms) < 30 or sum(again_ms) < 3000.0:
                begin = bench.machine.clock_ns()
                bench.net.work(size)
                again_ms.append((bench.machine.clock_ns() - begin) / 1e6)
            within.append(statistics.quantiles(again_ms, n=100, method="inclusive")[percentile - 1] <= budget_ms)
        assert sum(within) >= 18

    @pytest.mark.parametrize("budget", [0, -1.0, float("nan"), float("inf"), "5", True, None])
    def test_a_budget_that_is_none(self, budget):
        with pytest.raises(AITuneUserInputError, match=r"latency_budget_ms must be a (positive|finite) number"):
            LatencyBudgetStrategy(budget)

    @pytest.mark.parametrize("percentile", [95, 0, "50"])
    def test_an_unknown_percentile(self, percentile):
        with pytest.raises(AITuneUserInputError, match="50, 90 or 99"):
            LatencyBudgetStrategy(5.0, percentile=percentile)
