import math
from collections import Counter

import pytest
import torch

from aitune.exceptions import AITuneUserInputError
from aitune.testing.simulated_machine import BUSY, QUIET, TYPICAL, Noise, SimulatedMachine
from aitune.torch.module.sample import Sample
from aitune.torch.task.playoff import Contestant, PlayoffConfig, compare, playoff, screen

NO_INPUT = Sample((), {})
ONE_THREAD = PlayoffConfig(num_threads=1)
WILD = Noise(skew=0.1, drift=0.1, drift_seconds=0.3, burst_every=0.5, burst_seconds=0.3, burst_slowdown=8.0)


pytestmark = pytest.mark.usefixtures("cheap_collections")


def contestant(machine, key, seconds, **kwargs):
    return Contestant(key, machine.callable(seconds), NO_INPUT, **kwargs)


def trial(speedup, noise, seed, seconds=5e-3, run=compare, reports_pressure=True):
    machine = SimulatedMachine(noise, seed, reports_pressure)
    candidate = contestant(machine, "candidate", seconds / speedup)
    baseline = contestant(machine, "baseline", seconds)
    return run(candidate, baseline, PlayoffConfig(num_threads=1, seed=seed), machine=machine)


def verdicts(speedup, noise, trials, **kwargs):
    return Counter(trial(speedup, noise, seed, **kwargs).verdict for seed in range(trials))


# -- how often it is right -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("noise", [TYPICAL, BUSY], ids=["typical", "busy"])
@pytest.mark.parametrize("reports_pressure", [True, False], ids=["pressure", "no pressure"])
def test_the_same_against_itself_is_never_faster(noise, reports_pressure):
    seen = verdicts(1.0, noise, 150, reports_pressure=reports_pressure)
    assert seen["faster"] == seen["slower"] == 0


@pytest.mark.parametrize("reports_pressure", [True, False], ids=["pressure", "no pressure"])
def test_the_same_is_hardly_ever_faster_where_another_process_takes_turns(reports_pressure):
    seen = verdicts(1.0, WILD, 100, reports_pressure=reports_pressure)
    assert seen["faster"] <= 2


@pytest.mark.parametrize("noise", [TYPICAL, BUSY], ids=["typical", "busy"])
def test_half_a_percent_is_never_faster(noise):
    assert verdicts(1.005, noise, 40)["faster"] == 0


@pytest.mark.parametrize("noise", [TYPICAL, BUSY], ids=["typical", "busy"])
def test_five_percent_are_found(noise):
    assert verdicts(1.05, noise, 40)["faster"] >= 38


def test_five_percent_slower_is_found():
    assert verdicts(1 / 1.05, TYPICAL, 20) == {"slower": 20}


def test_screening_never_calls_the_same_faster_and_finds_a_third():
    assert verdicts(1.0, TYPICAL, 60, run=screen)["faster"] == 0
    assert verdicts(1.33, TYPICAL, 20, run=screen) == {"faster": 20}


@pytest.mark.parametrize("run", [compare, screen])
@pytest.mark.parametrize("speedup", [1.0, 1.03])
def test_the_interval_covers_the_true_ratio(run, speedup):
    results = [trial(speedup, TYPICAL, seed, run=run) for seed in range(150)]
    hits = sum(result.low <= speedup <= result.high for result in results)
    stated = sum(result.confidence for result in results) / 150
    assert hits / 150 >= stated - 0.02


def test_calls_of_two_seconds_are_decided_when_the_difference_is_large():
    results = [trial(1.8, TYPICAL, seed, seconds=2.0) for seed in range(40)]
    assert Counter(result.verdict for result in results)["faster"] >= 38
    assert all(result.pairs < 9 and result.seconds <= 20.5 for result in results)


@pytest.mark.parametrize("noise", [TYPICAL, BUSY, WILD], ids=["typical", "busy", "wild"])
def test_calls_of_two_seconds_are_hardly_ever_faster_than_themselves(noise):
    assert verdicts(1.0, noise, 200, seconds=2.0)["faster"] <= 1


# -- what it reports -------------------------------------------------------------------------------------------------


def test_a_quiet_comparison_in_every_field():
    result = trial(1.25, QUIET, 0)
    assert (result.candidate, result.opponent, result.verdict) == ("candidate", "baseline", "faster")
    assert result.speedup == result.low == result.high == pytest.approx(1.25)
    assert result.confidence == pytest.approx(1 - 2 * 2 / 2**10)
    assert (result.pairs, result.clean_pairs) == (10, 10)
    # Ten pairs of blocks of 50 ms with 10 ms of pause and a discarded call each, and three calls of each to warm up.
    assert result.seconds == pytest.approx(10 * (0.124 + 0.009) + 0.027, rel=0.05)
    assert result.reason == "candidate is 1.25 x as fast as baseline: ratio 1.250 (1.250 to 1.250)"


def test_a_tie_says_how_close():
    assert (
        trial(1.0, QUIET, 0).reason
        == "no difference above 2% between candidate and baseline: ratio 1.000 (1.000 to 1.000)"
    )


def test_undecided_says_what_was_in_the_way_and_what_would_help():
    result = trial(1.02, WILD, 1, seconds=20e-3)
    assert result.verdict == "undecided"
    assert f"{result.clean_pairs} of {result.pairs} pairs of blocks were undisturbed" in result.reason
    assert "other processes used" in result.reason
    assert "stop other work on this machine, or give more time than 20 s" in result.reason


def test_a_verdict_on_a_noisy_machine_says_how_well_the_ratio_is_known():
    result = trial(2.0, WILD, 3, reports_pressure=False)
    assert result.verdict == "faster"
    width = math.sqrt(result.high / result.low) - 1.0
    assert width > 0.05
    assert f"this machine was noisy: the ratio is known to ±{width:.0%} only" in result.reason
    assert "to narrow it: " in result.reason


def test_undecided_with_several_threads_advises_one():
    machine = SimulatedMachine(WILD, 1)
    result = compare(
        contestant(machine, "a", 20e-3),
        contestant(machine, "b", 20.4e-3),
        PlayoffConfig(num_threads=2),
        machine=machine,
    )
    assert result.verdict == "undecided"
    assert "use one thread" in result.reason


def test_times_are_compared_per_sample():
    machine = SimulatedMachine()
    eight = contestant(machine, "eight", 4e-3, samples_per_call=8)
    one = contestant(machine, "one", 1e-3, samples_per_call=1)
    assert compare(eight, one, ONE_THREAD, machine=machine).speedup == pytest.approx(2.0)


def test_a_seed_gives_the_same_result_again():
    assert trial(1.02, BUSY, 11) == trial(1.02, BUSY, 11)


# -- how it measures -------------------------------------------------------------------------------------------------


class Recorder(SimulatedMachine):
    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.log = []

    def sleep(self, seconds):
        self.log.append(("pause", seconds))
        super().sleep(seconds)

    def named(self, name, seconds):
        def infer():
            self.log.append(("call", name))
            self.work(seconds)

        return Contestant(name, infer, NO_INPUT)


def blocks_of(log):
    """Pause, contestant and number of calls of each block, without the warm-up of the two contestants."""
    blocks = []
    for kind, value in log:
        if kind == "pause":
            blocks.append([value, None, 0])
        elif blocks:
            blocks[-1][1] = value
            blocks[-1][2] += 1
    return blocks[2:]


@pytest.mark.parametrize(("threads", "pause"), [(1, 0.010), (2, 0.050)])
def test_blocks_of_fifty_milliseconds_after_a_pause_and_a_discarded_call(threads, pause):
    machine = Recorder()
    compare(machine.named("a", 10e-3), machine.named("b", 11e-3), PlayoffConfig(num_threads=threads), machine=machine)
    blocks = blocks_of(machine.log)
    assert {(rest, count) for rest, _, count in blocks} == {(pause, 6)}
    order = [name for _, name, _ in blocks]
    rounds = [tuple(order[n : n + 2]) for n in range(0, len(order), 2)]
    assert set(rounds) == {("a", "b"), ("b", "a")}


@pytest.mark.parametrize(("seconds", "calls"), [(0.2, 2), (0.6, 1)], ids=["one discarded", "none discarded"])
def test_a_long_call_is_a_block_of_its_own(seconds, calls):
    machine = Recorder()
    compare(machine.named("a", seconds), machine.named("b", 1.2 * seconds), ONE_THREAD, machine=machine)
    assert {count for _, _, count in blocks_of(machine.log)} == {calls}


def test_short_calls_are_timed_in_groups():
    machine = SimulatedMachine()
    readings = 0
    clock = machine.clock_ns

    def counted():
        nonlocal readings
        readings += 1
        return clock()

    machine.clock_ns = counted
    compare(contestant(machine, "a", 10e-6), contestant(machine, "b", 11e-6), ONE_THREAD, machine=machine)
    # 20 blocks of 50 ms hold about 95,000 calls; each reading serves a group of about 20, with 3 readings a group.
    assert readings < 20_000


def test_the_budget_is_kept():
    result = trial(1.015, TYPICAL, 2, seconds=0.1)
    assert result.pairs > 14
    assert result.seconds <= 20.0


def test_a_deadline_before_the_first_pair_is_undecided():
    machine = SimulatedMachine()
    a, b = contestant(machine, "a", 5.0), contestant(machine, "b", 5.0)
    result = compare(a, b, ONE_THREAD, deadline=machine.now() + 4, machine=machine)
    assert (result.verdict, result.pairs, result.confidence) == ("undecided", 0, 0.0)
    assert (result.low, result.high) == (0.001, 1000.0)
    assert "no pair of blocks fitted into 4.0 s" in result.reason


def test_the_first_long_calls_are_not_thrown_away():
    machine = SimulatedMachine()
    a, b = contestant(machine, "a", 4.0), contestant(machine, "b", 5.0)
    result = screen(a, b, ONE_THREAD, machine=machine)
    assert (result.verdict, result.pairs, result.confidence) == ("undecided", 1, 0.0)
    assert result.speedup == pytest.approx(1.25)
    assert result.low < 1.0
    assert result.high > 1.5
    assert result.seconds == pytest.approx(9.02)


def test_a_deadline_that_has_passed_runs_nothing():
    machine = SimulatedMachine()

    def infer():
        raise AssertionError

    entry = Contestant("a", infer, NO_INPUT)
    result = compare(entry, Contestant("b", infer, NO_INPUT), ONE_THREAD, deadline=machine.now() - 1, machine=machine)
    assert result.verdict == "undecided"


# -- several contestants ---------------------------------------------------------------------------------------------


def race(speedups, noise=TYPICAL, seed=0, config=None):
    machine = SimulatedMachine(noise, seed)
    baseline = contestant(machine, "baseline", 2e-3)
    entries = [contestant(machine, f"c{n}", 2e-3 / speedup) for n, speedup in enumerate(speedups)]
    return playoff(entries, baseline, config or PlayoffConfig(num_threads=1, seed=seed), machine=machine)


def test_three_finalists_are_compared_with_the_baseline_and_with_each_other():
    results = race([1.5, 1.8])
    assert [(r.candidate, r.opponent, r.verdict) for r in results] == [
        ("c0", "baseline", "faster"),
        ("c1", "baseline", "faster"),
        ("c1", "c0", "faster"),
    ]
    assert results[2].speedup == pytest.approx(1.2, rel=0.05)
    assert all(r.pairs == 12 for r in results)
    assert all(r.confidence >= 1 - 0.005 / 3 for r in results)


def test_two_that_are_alike_tie_and_both_beat_the_baseline():
    results = race([1.5, 1.5])
    assert [r.verdict for r in results] == ["faster", "faster", "tie"]


def test_a_loser_against_the_baseline_is_dropped_early():
    results = race([0.7, 1.02], QUIET)
    assert [r.verdict for r in results] == ["slower", "faster"]
    assert results[0].pairs == 12


def test_one_that_another_beats_is_not_measured_to_the_end():
    results = race([1.03, 2.0], Noise(drift=0.1, drift_seconds=0.1))
    assert results[1].verdict == "faster"
    assert results[0].pairs == 12
    assert results[0].verdict == "undecided"
    assert "not measured further, as c1 is faster" in results[0].reason


def test_among_four_the_two_best_are_compared():
    results = race([1.1, 1.9, 0.8, 1.6])
    assert [(r.candidate, r.opponent) for r in results[:4]] == [(f"c{n}", "baseline") for n in range(4)]
    assert [(r.candidate, r.opponent, r.verdict) for r in results[4:]] == [("c3", "c1", "slower")]


def test_a_single_contestant_is_a_plain_comparison():
    (result,) = race([1.3])
    assert (result.pairs, result.verdict) == (10, "faster")


def test_three_alike_are_never_faster():
    for seed in range(20):
        assert {result.verdict for result in race([1.0, 1.0], BUSY, seed)} <= {"tie", "undecided"}


# -- things that go wrong --------------------------------------------------------------------------------------------


def failing(machine, key, after):
    def seconds(call):
        if call >= after:
            raise RuntimeError("it broke")
        return 1e-3

    return contestant(machine, key, seconds)


@pytest.mark.parametrize("after", [0, 1, 300])
def test_a_candidate_that_raises_is_out_and_the_others_go_on(after):
    machine = SimulatedMachine()
    baseline = contestant(machine, "baseline", 2e-3)
    results = playoff(
        [failing(machine, "bad", after), contestant(machine, "good", 1.9e-3)], baseline, ONE_THREAD, machine=machine
    )
    assert [(r.candidate, r.verdict) for r in results] == [("bad", "undecided"), ("good", "faster")]
    assert results[0].reason == "bad raised RuntimeError: it broke"


def test_a_baseline_that_raises_is_an_error_of_the_user():
    machine = SimulatedMachine()
    with pytest.raises(RuntimeError, match="it broke"):
        compare(contestant(machine, "good", 1e-3), failing(machine, "baseline", 30), ONE_THREAD, machine=machine)


def test_keys_must_differ():
    machine = SimulatedMachine()
    same = contestant(machine, "same", 1e-3)
    with pytest.raises(AITuneUserInputError, match="key of its own"):
        compare(same, same, machine=machine)
    with pytest.raises(AITuneUserInputError, match="at least one contestant"):
        playoff([], same, machine=machine)


@pytest.mark.parametrize(
    "settings",
    [
        {"block_seconds": 0.0},
        {"pause_seconds": -1.0},
        {"minimum_gain": -0.1},
        {"tie_within": float("nan")},
        {"alpha": 0.0},
        {"alpha": 1.0},
        {"looks": ()},
        {"looks": (10, 10)},
        {"looks": (0, 10)},
        {"looks": "10"},
        {"looks": (1.5, 2)},
        {"alpha": "0.005"},
        {"minimum_gain": "1%"},
        {"pause_seconds": float("inf")},
        {"num_threads": 0},
        {"pair_budget_seconds": 0.0},
        {"group_budget_seconds": -1.0},
    ],
)
def test_settings_out_of_range_are_named(settings):
    with pytest.raises(AITuneUserInputError, match=next(iter(settings))):
        PlayoffConfig(**settings)


def test_the_number_of_threads_is_torchs_unless_given():
    assert PlayoffConfig().threads == torch.get_num_threads()


def test_inputs_that_a_contestant_changes_are_copied():
    machine = SimulatedMachine()
    x = torch.zeros(2)
    seen = set()

    def infer(value):
        seen.add(float(value[0]))
        value.add_(1.0)
        machine.work(1e-3)

    entry = Contestant("a", infer, Sample((x,), {}), copy_inputs=True)
    compare(entry, contestant(machine, "b", 2e-3), ONE_THREAD, machine=machine)
    assert seen == {0.0}
    assert float(x[0]) == 0.0


def test_real_callables_on_the_real_machine():
    module = torch.nn.Linear(8, 8)
    sample = Sample((torch.zeros(2, 8),), {})

    def thirty_times(x):
        for _ in range(30):
            module(x)

    short = PlayoffConfig(block_seconds=0.002, pause_seconds=0.0, pair_budget_seconds=5.0)
    result = compare(Contestant("once", module, sample), Contestant("thirty", thirty_times, sample), short)
    assert result.pairs >= 1
    assert math.isfinite(result.speedup)
    assert result.speedup > 1.0
