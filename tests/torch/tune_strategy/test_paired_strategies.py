"""The shipped strategies on a simulated machine: real sweeps, screens and playoffs in made-up time."""

import json
import random
import re
import statistics

import pytest
from strategy_parts import ORIGINAL, Scored, TimedBackend, TimedNet, outcome_of, run, with_context

from aitune.events import CandidateStage, Emitter
from aitune.exceptions import (
    AITuneUserInputError,
    BackendUnavailableError,
    BuildError,
    CorrectnessError,
    ProfilingError,
    TuningError,
)
from aitune.testing.fakes import FakeBackend, add_offset
from aitune.testing.simulated_machine import BUSY, QUIET, TYPICAL, Noise, SimulatedMachine
from aitune.torch.task.accuracy_budget import AccuracyBudget
from aitune.torch.task.profiling.config import ProfilingConfig
from aitune.torch.task.profiling.measuring_stop import NumStepsMeasuringStopStrategy
from aitune.torch.tune_strategy import build_cost
from aitune.torch.tune_strategy.cost_history import CostHistory
from aitune.torch.tune_strategy.first_wins_strategy import FirstWinsStrategy
from aitune.torch.tune_strategy.latency_budget_strategy import LatencyBudgetStrategy
from aitune.torch.tune_strategy.max_throughput_strategy import MaxThroughputStrategy
from aitune.torch.tune_strategy.min_latency_strategy import MinLatencyStrategy
from aitune.torch.tune_strategy.one_backend_strategy import OneBackendStrategy
from aitune.torch.tune_strategy.profiling_tune_strategy import BASELINE_KEY


class Bench:
    """A simulated machine, an original of 5 ms a call, and candidates."""

    def __init__(self, folder, noise=TYPICAL, seed=0, seconds=0.005, per_sample=0.0):
        self.machine = SimulatedMachine(noise, seed)
        self.net = TimedNet(self.machine, seconds, per_sample)
        self.folder = folder

    def backend(self, label, seconds, per_sample=0.0, **settings):
        return TimedBackend(label, self.machine, seconds, per_sample, **settings)

    def tune(self, strategy, batch_sizes=(2, 4), recorded=(2, 4), **context):
        with_context(strategy, self.machine, batch_sizes=batch_sizes, **context)
        return run(strategy, self.folder, self.net, recorded).describe()


@pytest.fixture
def bench(tmp_path):
    return Bench(tmp_path)


def comparison(strategy, candidate, opponent=BASELINE_KEY):
    pair = (f"Fake-{candidate}", opponent)
    return next(c for c in strategy.report.comparisons if (c.candidate, c.opponent) == pair)


# -- max throughput --------------------------------------------------------------------------------------------------


class TestMaxThroughput:
    def test_the_fastest_wins_and_the_reason_names_the_next_best(self, bench):
        strategy = MaxThroughputStrategy([bench.backend("a", 0.004), bench.backend("b", 0.003)])
        assert bench.tune(strategy) == "Fake(b)"
        reason = strategy.report.reason
        assert reason.startswith("clearly faster than the original module, and 1.3")
        assert reason.endswith("times as fast as Fake(a), the next best")
        assert comparison(strategy, "b").low > 1.5
        assert all("Fake-" not in c.reason and "baseline" not in c.reason for c in strategy.report.comparisons)

    @pytest.mark.parametrize("seed", range(4))
    @pytest.mark.parametrize("noise", [TYPICAL, BUSY], ids=["typical", "busy"])
    def test_inside_the_noise_the_original_stays(self, tmp_path, noise, seed):
        bench = Bench(tmp_path, noise, seed)
        strategy = MaxThroughputStrategy([bench.backend("same", 0.005)])
        assert bench.tune(strategy) == ORIGINAL
        reason = strategy.report.reason
        assert reason.startswith("no candidate is clearly faster") or "could not be decided" in reason

    def test_a_tie_of_two_goes_to_the_first_in_the_list(self, bench):
        strategy = MaxThroughputStrategy([bench.backend("a", 0.003), bench.backend("b", 0.003)])
        assert bench.tune(strategy) == "Fake(a)"
        assert "comes later in the list" in strategy.report.reason

    def test_of_many_the_two_best_play_off(self, bench):
        seconds = {"a": 0.0045, "b": 0.002, "c": 0.006, "d": 0.0015, "e": 0.003}
        strategy = MaxThroughputStrategy([bench.backend(label, each) for label, each in seconds.items()])
        assert bench.tune(strategy) == "Fake(d)"
        assert "times as fast as Fake(b), the next best" in strategy.report.reason
        assert comparison(strategy, "c").verdict == "slower"
        pairs = [frozenset((c.candidate, c.opponent)) for c in strategy.report.comparisons]
        assert len(pairs) == len(set(pairs))

    def test_one_that_was_slower_side_by_side_is_out_before_the_playoff(self, bench):
        strategy = MaxThroughputStrategy([bench.backend("slow", 0.008)])
        assert bench.tune(strategy) == ORIGINAL
        assert comparison(strategy, "slow").pairs == 8
        assert strategy.report.reason == (
            f"no candidate is clearly faster: the best, Fake(slow), runs at "
            f"{comparison(strategy, 'slow').speedup:.2f} ({comparison(strategy, 'slow').low:.2f} to "
            f"{comparison(strategy, 'slow').high:.2f}) times its speed"
        )

    def test_without_validation_the_best_candidate_wins_however_slow(self, bench):
        for mode in ("disabled", "diagnostic"):
            backends = [bench.backend("slower", 0.03), bench.backend("slow", 0.02)]
            strategy = MaxThroughputStrategy(backends).enable_performance_validation(mode)
            assert bench.tune(strategy) == "Fake(slow)"
            assert "times as fast as Fake(slower), the next best" in strategy.report.reason
            with_baseline = [c for c in strategy.report.comparisons if c.opponent == BASELINE_KEY]
            assert len(with_baseline) == (2 if mode == "diagnostic" else 0)

    def test_the_only_candidate_without_validation(self, bench):
        strategy = MaxThroughputStrategy([bench.backend("only", 0.02)]).enable_performance_validation(False)
        assert bench.tune(strategy) == "Fake(only)"
        assert strategy.report.reason == "the only candidate that came through"

    @pytest.mark.parametrize("mode", ["enabled", "disabled"])
    @pytest.mark.parametrize("order", [("worn", "good"), ("good", "worn")])
    def test_a_finalist_that_fails_in_the_playoff_is_out(self, bench, mode, order):
        state = {}
        backends = {"worn": bench.backend("worn", 0.001, state=state), "good": bench.backend("good", 0.002)}
        strategy = MaxThroughputStrategy([backends[label] for label in order]).enable_performance_validation(mode)
        assert bench.tune(strategy, emitter=Emitter([WearsOut(state)])) == "Fake(good)"
        outcome = outcome_of(strategy, "worn")
        assert (outcome.status, outcome.stage) == ("failed", "measure")
        assert outcome.reason == "Fake(worn) raised RuntimeError while it was measured: worn is worn out"

    @pytest.mark.parametrize("mode", ["enabled", "disabled"])
    def test_when_every_finalist_fails_in_the_playoff(self, bench, mode):
        state = {}
        backends = [bench.backend(label, 0.001, state=state) for label in ("a", "b")]
        strategy = MaxThroughputStrategy(backends).enable_performance_validation(mode)
        emitter = Emitter([WearsOut(state)])
        if mode == "enabled":
            assert bench.tune(strategy, emitter=emitter) == ORIGINAL
            assert strategy.report.reason == "no candidate came through"
        else:
            with pytest.raises(TuningError, match=r"a is worn out.*b is worn out"):
                bench.tune(strategy, emitter=emitter)

    def test_one_that_fails_while_it_is_screened_is_out(self, bench):
        # Some 220 calls check and measure it; 50 more make one block of the screening.
        strategy = MaxThroughputStrategy([bench.backend("worn", 0.001, fails_after=300), bench.backend("good", 0.004)])
        assert bench.tune(strategy) == "Fake(good)"
        assert "worn is worn out" in outcome_of(strategy, "worn").reason

    def test_batch_sizes_are_those_of_the_run_and_inside_the_range(self, bench):
        strategy = MaxThroughputStrategy([bench.backend("a", 0.004)])
        bench.tune(strategy, batch_sizes=(1, 4, 64), recorded=(2, 4))
        assert [m.batch_size for m in outcome_of(strategy, "a").measurements] == [4]

    def test_batch_sizes_are_capped_by_the_maximum_found(self, tmp_path):
        # From 32 samples on a call takes so long that more of them gain nothing.
        bench = Bench(tmp_path, seconds=0.001, per_sample=0.001)
        strategy = MaxThroughputStrategy([bench.backend("a", 0.0005, 0.0005)])
        with_context(strategy, bench.machine, batch_sizes=None)
        run(strategy, tmp_path, bench.net, (1, 2))
        searched = [event.batch_size for event in strategy.batch_size_search.events]
        largest = max(strategy.batch_size_search.measurements(), key=lambda m: m.throughput).batch_size
        assert searched[:3] == [1, 2, 4]
        assert largest < 1024
        sizes = [m.batch_size for m in outcome_of(strategy, "a").measurements]
        assert sizes[:3] == [1, 2, 4]
        assert max(sizes) <= largest

    def test_the_batch_size_with_the_most_samples_a_second_counts(self, tmp_path):
        bench = Bench(tmp_path, seconds=0.001, per_sample=0.001)
        backends = [bench.backend("quick", 0.0005, 0.001), bench.backend("steady", 0.004, 0.0002)]
        strategy = MaxThroughputStrategy(backends)
        assert bench.tune(strategy, batch_sizes=(1, 16), recorded=(1, 16)) == "Fake(steady)"

    def test_a_subclass_with_its_own_is_better_decides_alone(self, bench):
        class Slowest(MaxThroughputStrategy):
            def _is_better(self, result, other):
                return result.metric < other.metric

        strategy = Slowest([bench.backend("a", 0.001), bench.backend("b", 0.04), bench.backend("c", 0.02)])
        assert bench.tune(strategy) == "Fake(b)"

    def test_a_subclass_that_measures_something_else_is_not_judged_by_its_speed(self, bench):
        class Modest(MaxThroughputStrategy):
            def _measure(self, backend, name, graph_spec, data, profiling_cfg):
                return Scored(2, {ORIGINAL: 10.0, "Fake(a)": 5.0, "Fake(b)": 30.0}[backend.describe()])

        strategy = Modest([bench.backend("a", 0.001), bench.backend("b", 0.04)])
        assert bench.tune(strategy) == "Fake(b)"
        assert strategy.report.comparisons == ()

    def test_what_was_promised_after_the_playoff_is_what_passed(self, bench):
        strategy = MaxThroughputStrategy([bench.backend("a", 0.004), bench.backend("same", 0.005)])
        bench.tune(strategy)
        assert [(r.backend_description, r.passed) for r in strategy.perf_validation_results] == [
            ("Fake(a)", True),
            ("Fake(same)", False),
        ]


class TestFreeBatchSizes:
    def test_the_original_is_not_measured_twice_at_what_the_search_measured(self, tmp_path):
        bench = Bench(tmp_path, seconds=0.004, per_sample=0.001)
        strategy = MaxThroughputStrategy([])
        bench.tune(strategy, None, (1, 2))
        searched = {m.batch_size: m for m in strategy.batch_size_search.measurements()}
        kept = [m for m in strategy.report.outcomes[0].measurements if m.batch_size in searched]
        assert len(kept) > 3
        assert all(searched[measurement.batch_size] == measurement for measurement in kept)

    def test_batch_sizes_beside_the_best_power_of_two_are_looked_at(self, tmp_path):
        bench = Bench(tmp_path, QUIET)
        bench.net.work = lambda batch: bench.machine.work(0.001 * batch * (1.0 + ((batch - 6.5) / 6.0) ** 2))
        strategy = MaxThroughputStrategy([])
        bench.tune(strategy, None, (1, 2))
        assert [m.batch_size for m in strategy.report.outcomes[0].measurements] == [1, 2, 4, 6, 8]
        assert strategy.strategy_results[BASELINE_KEY]["selected_batch_size"] == 6

    def test_named_batch_sizes_are_all_that_is_measured(self, bench):
        strategy = MaxThroughputStrategy([])
        bench.tune(strategy, (1, 8), (1, 8))
        assert [m.batch_size for m in strategy.report.outcomes[0].measurements] == [1, 8]

    def test_with_a_time_budget_the_search_takes_a_share_of_it(self, tmp_path):
        bench = Bench(tmp_path, QUIET, seconds=0.5, per_sample=0.5)
        strategy = MaxThroughputStrategy([])
        bench.tune(strategy, None, (1, 2), deadline=bench.machine.now() + 60.0)
        assert "no time" in strategy.batch_size_search.stop_reason
        assert len(strategy.batch_size_search.events) < 5


class CheapBackend(TimedBackend):
    """Its builds are known to be cheap."""


class WearingOut(TimedBackend):
    """Takes a little longer with every call, and keeps some memory of it."""

    def _infer(self, x):
        self._seconds *= 1.01
        self._machine.occupied_bytes += 2**20
        return super()._infer(x)


class TestWhatIsNoticed:
    def test_a_candidate_that_gets_slower_and_keeps_memory_says_so_in_its_notes(self, bench):
        few = ProfilingConfig([2], measurement_stop_strategy=NumStepsMeasuringStopStrategy(30, 2))
        strategy = MaxThroughputStrategy([WearingOut("worn", bench.machine, 0.001)], few)
        bench.tune(strategy)
        notes = outcome_of(strategy, "worn").notes
        assert any("batch size 2: calls get slower and slower" in note for note in notes)
        assert any("memory is not given back" in note for note in notes)

    def test_a_candidate_that_raises_after_some_calls_is_out_with_that_reason(self, bench):
        strategy = MaxThroughputStrategy([bench.backend("worn", 0.001, fails_after=20)])
        assert bench.tune(strategy) == ORIGINAL
        assert outcome_of(strategy, "worn").status == "failed"
        assert (
            "Fake(worn) raised RuntimeError while it was measured: worn is worn out"
            in outcome_of(strategy, "worn").reason
        )

    def test_a_noisy_machine_is_warned_of_and_a_steady_one_is_not(self, tmp_path, bench):
        wild = Noise(skew=0.1, drift=0.1, drift_seconds=0.3, burst_every=0.5, burst_seconds=0.3, burst_slowdown=8.0)
        for where, is_noisy in ((bench, False), (Bench(tmp_path / "noisy", wild), True)):
            strategy = MaxThroughputStrategy([where.backend("a", 0.0045)])
            where.tune(strategy)
            warnings = [w for w in strategy.report.warnings if "this machine was noisy" in w]
            assert bool(warnings) == is_noisy
            assert all("to narrow it, " in warning for warning in warnings)


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


# -- min latency -----------------------------------------------------------------------------------------------------


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


# -- latency budget --------------------------------------------------------------------------------------------------


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

    @pytest.mark.parametrize("percentile", [50, 90])
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


# -- first wins ------------------------------------------------------------------------------------------------------


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


# -- one backend -----------------------------------------------------------------------------------------------------


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


# -- settings --------------------------------------------------------------------------------------------------------


STRATEGIES = {
    "MaxThroughput": MaxThroughputStrategy,
    "MinLatency": lambda backends: MinLatencyStrategy(backends, batch_size=2),
    "LatencyBudget": lambda backends: LatencyBudgetStrategy(8.0, backends, percentile=90),
    "FirstWins": FirstWinsStrategy,
    "OneBackend": lambda backends: OneBackendStrategy(backends[0]),
}


@pytest.mark.parametrize("make", STRATEGIES.values(), ids=STRATEGIES)
def test_settings_are_plain_and_whole(make):
    strategy = make([FakeBackend("a")])
    strategy.enable_performance_validation("diagnostic").enable_correctness_check(False)
    strategy.enable_find_max_batch_size(False)
    settings = json.loads(json.dumps(strategy.to_json_dict()))
    assert settings == strategy.to_json_dict()
    assert settings["strategy"] == type(strategy).__name__
    assert settings["backends"] == [{"name": "Fake", "key": "Fake-a", "config": None}]
    assert settings["explicit_backends"] is True
    assert settings["performance_validation"] == "diagnostic"
    assert settings["correctness_check"] is settings["find_max_batch_size"] is False
    for name in ("workflow", "metric", "accuracy_budget", "profiling_config", "playoff", "seed", "batch_sizes"):
        assert name in settings


def test_default_candidates_are_named_with_their_configuration():
    settings = json.loads(json.dumps(MaxThroughputStrategy().to_json_dict()))
    names = [backend["name"] for backend in settings["backends"]]
    assert names == ["ONNXRuntime", "OpenVINO", "TorchInductorAot", "TorchInductorJit"]
    assert all(backend["config"] for backend in settings["backends"])
    assert settings["explicit_backends"] is False


def test_settings_of_its_own_strategies_and_budgets_are_named():
    config = ProfilingConfig([1, 2], measurement_stop_strategy=NumStepsMeasuringStopStrategy(7))
    budget = AccuracyBudget(metric=_agreement, min_metric=0.9)
    settings = json.loads(json.dumps(MaxThroughputStrategy([], config, accuracy_budget=budget).to_json_dict()))
    stop = settings["profiling_config"]["measurement_stop_strategy"]
    assert stop == {"class": "NumStepsMeasuringStopStrategy", "num_steps": 7, "warmup_samples": 10}
    assert settings["accuracy_budget"]["metric"].endswith("_agreement")
    assert settings["accuracy_budget"]["min_metric"] == 0.9


def _agreement(reference, candidate, samples):
    return 1.0


@pytest.mark.parametrize("budget", [0.01, "1%", {"max_relative_error": 0.01}])
def test_an_accuracy_budget_of_another_kind_is_an_error(budget):
    with pytest.raises(AITuneUserInputError, match="accuracy_budget"):
        MaxThroughputStrategy([], accuracy_budget=budget)


def test_a_metric_that_cannot_be_called_is_an_error():
    with pytest.raises(AITuneUserInputError, match="metric"):
        AccuracyBudget(metric=0.9, min_metric=0.5)


class WearsOut:
    """Breaks backends when their playoff is announced."""

    def __init__(self, state):
        self._state = state

    def on_event(self, event):
        if isinstance(event, CandidateStage) and event.stage == "playoff":
            self._state["broken"] = True
