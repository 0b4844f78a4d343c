import math
from dataclasses import replace

import pytest

from aitune.torch.task.paired.blocks import Block, is_disturbed, undisturbed
from aitune.torch.task.paired.duel import Duel, Rules, judge
from aitune.torch.task.paired.signed_rank import CentreInterval, signed_rank_interval

RULES = Rules(minimum_gain=0.01, tie_within=0.02, final_tie_within=0.05, alpha=0.005, looks=(10, 14, 20))
CLEAN = Block(1.0, 10, stalled_share=0.0)
DIRTY = Block(1.0, 10, stalled_share=0.5)


def interval(low, high):
    return CentreInterval(math.log((low + high) / 2), math.log(low), math.log(high), 0.995)


@pytest.mark.parametrize(
    ("low", "high", "verdict"),
    [
        (1.011, 1.5, "faster"),
        (1.009, 1.5, None),
        (0.5, 0.98, "slower"),
        (0.5, 0.995, None),
        (0.985, 1.015, "tie"),
        (0.985, 1.025, None),
        (1.011, 1.015, "faster"),
    ],
)
def test_verdict_by_where_the_interval_lies(low, high, verdict):
    decision = judge(interval(low, high), RULES)
    assert (decision and decision.verdict) == verdict


def test_candidate_and_opponent_can_change_places():
    opposite = {"faster": "slower", "slower": "faster", "tie": "tie"}
    for low, high in ((1.02, 1.1), (0.985, 1.015)):
        there, back = judge(interval(low, high), RULES), judge(interval(1 / high, 1 / low), RULES)
        assert opposite[there.verdict] == back.verdict


def fight(ratios, block=CLEAN, rules=RULES):
    duel = Duel("a", "b", rules)
    for count, ratio in enumerate(ratios, start=1):
        duel.add(block, replace(block, seconds=ratio))
        if duel.decision is not None:
            return duel, count
    return duel, None


def test_nothing_is_decided_between_the_looks():
    duel, decided_at = fight([1.05] * 9)
    assert decided_at is None
    duel.add(CLEAN, replace(CLEAN, seconds=1.05))
    assert duel.decision.verdict == "faster"


def test_a_look_that_decides_nothing_is_not_repeated_before_the_next():
    ratios = [0.9] + [1.05] * 20
    assert signed_rank_interval([math.log(ratio) for ratio in ratios[:17]], 0.005).low > math.log(1.01)
    duel, decided_at = fight(ratios, rules=replace(RULES, looks=(10, 20)))
    assert decided_at == 20
    assert duel.decision.verdict == "faster"


def test_a_look_at_disturbed_pairs_that_scatter_is_not_put_off():
    # Ten pairs scatter too much; the eleventh alone brings the median deviation to nothing.
    assert fight([1.1, 1.9] * 5 + [1.1], DIRTY)[1] is None


def test_disturbed_pairs_are_left_out_while_enough_others_come():
    duel = Duel("a", "b", RULES)
    for _ in range(10):
        duel.add(CLEAN, replace(CLEAN, seconds=1.1))
        duel.add(CLEAN, replace(DIRTY, seconds=3.0 if duel.pairs % 4 == 1 else 0.4))
    assert duel.decision.verdict == "faster"
    assert duel.decision.interval.estimate == pytest.approx(math.log(1.1))
    assert (duel.pairs, duel.clean_pairs) == (20, 10)


def test_disturbed_pairs_count_while_they_scatter_little():
    assert fight([1.04, 1.06] * 5, DIRTY)[0].decision.verdict == "faster"
    assert fight([1.1, 1.9] * 10, DIRTY)[1] is None
    assert fight([1.1, 1.9] * 10, CLEAN)[0].decision.verdict == "faster"


@pytest.mark.parametrize(("fast", "slow", "verdict"), [(1.6, 3.0, "faster"), (0.35, 0.65, "slower")])
def test_disturbed_pairs_that_scatter_decide_what_is_far_beyond_doubt(fast, slow, verdict):
    duel, decided_at = fight([fast, slow] * 5, DIRTY)
    assert decided_at == 10
    assert duel.decision.verdict == verdict


def test_disturbed_pairs_that_scatter_never_tie():
    assert fight([0.8, 1.25] * 10, DIRTY, replace(RULES, tie_within=2.0))[1] is None


def test_ratios_are_opponent_over_candidate():
    duel = Duel("a", "b", RULES)
    for _ in range(10):
        duel.add(replace(CLEAN, seconds=2.0), replace(CLEAN, seconds=1.0))
    assert duel.decision.verdict == "slower"
    assert duel.estimate() == pytest.approx(math.log(0.5))


def test_at_the_end_a_wider_tie_is_accepted():
    duel, decided_at = fight([0.97, 1.03] * 6)
    assert decided_at is None
    assert duel.finish().verdict == "tie"
    assert duel.finish().margin == 0.05


def test_at_the_end_an_interval_across_everything_is_undecided():
    duel, _ = fight([0.8, 1.3] * 6)
    assert duel.finish().verdict == "undecided"


def test_at_the_end_a_look_that_will_not_come_is_taken():
    duel, decided_at = fight([0.9] + [1.05] * 16, rules=replace(RULES, looks=(10, 20)))
    assert decided_at is None
    assert duel.finish().verdict == "faster"


def test_at_the_end_nothing_is_called_faster_that_the_looks_did_not():
    duel, _ = fight([0.9] + [1.05] * 16, rules=replace(RULES, looks=(10,)))
    assert duel.finish().verdict == "undecided"


def test_a_few_long_calls_decide_a_large_difference_only():
    assert fight([2.0, 2.05, 1.95, 2.02])[0].finish().verdict == "faster"
    assert fight([0.5, 0.51, 0.49, 0.5])[0].finish().verdict == "slower"
    assert fight([1.02, 1.04, 1.03, 1.05])[0].finish().verdict == "undecided"
    assert fight([2.0, 2.0, 2.0])[0].finish().verdict == "undecided"
    assert fight([2.0, 3.0, 1.5, 2.5, 4.0])[0].finish().verdict == "undecided"


def test_without_a_pair_there_is_no_decision():
    duel = Duel("a", "b", RULES)
    assert duel.finish() is None
    assert duel.estimate() == 0.0


def test_pressure_tells_a_disturbed_block():
    assert not is_disturbed(Block(1.0, 5, stalled_share=0.02), 1.0)
    assert is_disturbed(Block(1.0, 5, stalled_share=0.021), 1.0)


def test_without_pressure_processor_time_tells_it():
    shares = [1.9, 1.88, 1.2, 1.8, 1.95]
    assert undisturbed(Block(1.0, 5, None, share) for share in shares) == [True, True, False, False, True]
    assert undisturbed([]) == []
