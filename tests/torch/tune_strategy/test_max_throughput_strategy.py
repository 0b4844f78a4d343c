"""The default strategy on a simulated machine: real sweeps, screens and playoffs in made-up time."""

import pytest
from strategy_parts import ORIGINAL, Bench, Scored, TimedBackend, comparison, outcome_of, run, with_context

from aitune.events import CandidateStage, Emitter
from aitune.exceptions import (
    TuningError,
)
from aitune.testing.simulated_machine import BUSY, QUIET, TYPICAL, Noise
from aitune.torch.task.profiling.config import ProfilingConfig
from aitune.torch.task.profiling.measuring_stop import NumStepsMeasuringStopStrategy
from aitune.torch.tune_strategy.max_throughput_strategy import MaxThroughputStrategy
from aitune.torch.tune_strategy.profiling_tune_strategy import BASELINE_KEY


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


class WearsOut:
    """Breaks backends when their playoff is announced."""

    def __init__(self, state):
        self._state = state

    def on_event(self, event):
        if isinstance(event, CandidateStage) and event.stage == "playoff":
            self._state["broken"] = True
