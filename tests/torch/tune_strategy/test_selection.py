from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aitune.torch.task.outcome import PairedComparison
from aitune.torch.tune_strategy.reasons import explain_best, explain_kept, explain_win, warning_of_noise
from aitune.torch.tune_strategy.selection import in_order, rank, replace_comparisons, verdict_between

NAMES = {"baseline": "the original module", "a": "ONNXRuntime", "b": "OpenVINO", "c": "Inductor"}


def compared(candidate, opponent, verdict, speedup=None):
    speedup = speedup or {"faster": 1.5, "slower": 0.5}.get(verdict, 1.0)
    return PairedComparison(
        candidate, opponent, speedup, 0.9 * speedup, 1.1 * speedup, 0.995, verdict, 10, 10, 1.0, "because"
    )


def choose(entries, is_better, baseline=None):
    return next(iter(rank(entries, is_better, baseline)), None)


def by_pairs(comparisons):
    return lambda one, other: verdict_between(one, other, comparisons) == "faster"


@pytest.mark.parametrize(
    ("comparisons", "expected"),
    [
        ([("a", "baseline", "faster"), ("b", "baseline", "faster"), ("b", "a", "faster")], "b"),
        ([("a", "baseline", "faster"), ("b", "baseline", "faster"), ("b", "a", "tie")], "a"),
        ([("a", "baseline", "faster"), ("b", "baseline", "faster"), ("b", "a", "undecided")], "a"),
        ([("a", "baseline", "faster"), ("b", "baseline", "faster"), ("b", "a", "slower")], "a"),
        ([("a", "baseline", "tie"), ("b", "baseline", "faster")], "b"),
        ([("a", "baseline", "undecided"), ("b", "baseline", "faster"), ("b", "a", "tie")], "b"),
        ([("a", "baseline", "tie"), ("b", "baseline", "tie"), ("b", "a", "faster")], "b"),
        ([("a", "baseline", "slower"), ("b", "baseline", "slower")], "a"),
    ],
)
def test_the_choice_among_two_and_a_baseline(comparisons, expected):
    seen = [compared(*entry) for entry in comparisons]
    assert choose(["a", "b"], by_pairs(seen), "baseline") == expected


def test_nothing_to_choose_from():
    assert choose([], by_pairs([]), "baseline") is None
    assert choose(["a"], by_pairs([])) == "a"


def test_ties_in_a_chain_do_not_put_a_loser_first():
    # a and b tie, b and c tie, and c is better than a: a sort by such an order may well begin with a.
    seen = [compared("a", "b", "tie"), compared("b", "c", "tie"), compared("c", "a", "faster")]
    assert rank(["a", "b", "c"], by_pairs(seen)) == ["b", "c", "a"]


def test_a_circle_falls_back_to_the_order_given():
    seen = [compared("a", "b", "faster"), compared("b", "c", "faster"), compared("c", "a", "faster")]
    assert rank(["a", "b", "c"], by_pairs(seen)) == ["a", "b", "c"]


INTERVALS = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 10)), min_size=1, max_size=7)


def above(one, other):
    return one[1] > other[1] + other[2]


@given(INTERVALS)
def test_the_choice_never_lost(intervals):
    entries = [(number, low, width) for number, (low, width) in enumerate(intervals)]
    chosen = choose(entries, above)
    assert not any(above(other, chosen) for other in entries)
    # Of those that nobody beats, it is the first in the list.
    unbeaten = [one for one in entries if not any(above(other, one) for other in entries)]
    assert chosen == unbeaten[0]


@given(INTERVALS)
def test_nobody_is_ranked_before_one_that_is_better(intervals):
    entries = [(number, low, width) for number, (low, width) in enumerate(intervals)]
    ranked = rank(entries, above)
    assert sorted(ranked) == entries
    for place, entry in enumerate(ranked):
        assert not any(above(later, entry) for later in ranked[place + 1 :])


@given(INTERVALS, st.integers(0, 30))
def test_one_that_beats_the_baseline_comes_before_all_that_do_not(intervals, level):
    entries = [(number, low, width) for number, (low, width) in enumerate(intervals)]
    baseline = (-1, level, 0)
    chosen = choose(entries, above, baseline)
    assert above(chosen, baseline) == any(above(entry, baseline) for entry in entries)


@given(st.lists(st.integers(0, 3), min_size=1, max_size=7), st.randoms(use_true_random=False))
def test_permuting_the_list_changes_only_who_of_equals_comes_first(levels, random):
    entries = [(number, 10 * level, 2) for number, level in enumerate(levels)]
    shuffled = list(entries)
    random.shuffle(shuffled)
    chosen, again = choose(entries, above), choose(shuffled, above)
    assert chosen[1:] == again[1:]
    assert again == next(entry for entry in shuffled if entry[1:] == chosen[1:])


@given(st.permutations(["a", "b", "c"]), st.data())
def test_a_choice_from_verdicts_never_lost_to_another_and_needs_no_luck(order, data):
    verdicts = st.sampled_from(["faster", "slower", "tie", "undecided"])
    seen = [compared(one, "baseline", data.draw(verdicts)) for one in order]
    seen += [compared(one, other, data.draw(verdicts)) for one, other in (("b", "a"), ("c", "a"), ("c", "b"))]
    is_better = by_pairs(seen)
    chosen = choose(order, is_better, "baseline")
    rivals = [one for one in order if is_better(one, "baseline")] or order
    assert chosen in rivals
    if any(not any(is_better(other, one) for other in rivals) for one in rivals):
        assert not any(is_better(other, chosen) for other in rivals)


def test_a_verdict_reads_from_both_sides():
    seen = [compared("a", "b", "faster"), compared("a", "c", "undecided")]
    assert verdict_between("a", "b", seen) == "faster"
    assert verdict_between("b", "a", seen) == "slower"
    assert verdict_between("c", "a", seen) == "undecided"
    assert verdict_between("b", "c", seen) is None


def test_a_later_comparison_replaces_the_one_before():
    first, other, later = compared("a", "b", "tie"), compared("c", "b", "tie"), compared("b", "a", "faster")
    assert replace_comparisons([first, other], [later]) == (other, later)


WINS = [compared("a", "baseline", "faster"), compared("b", "baseline", "faster")]


@pytest.mark.parametrize(
    ("verdict", "expected"),
    [
        ("slower", "clearly faster than the original module, and 1.25 times as fast as OpenVINO, the next best"),
        ("tie", "clearly faster than the original module, and as fast as OpenVINO, which comes later in the list"),
        (
            "undecided",
            "clearly faster than the original module, and not clearly slower than OpenVINO, which comes later in the "
            "list",
        ),
    ],
)
def test_the_reason_of_a_winner(verdict, expected):
    comparisons = [*WINS, compared("b", "a", verdict, 0.8)]
    assert explain_win("a", "b", comparisons, NAMES) == expected


def test_the_reason_of_a_winner_without_a_rival():
    assert explain_win("a", None, WINS, NAMES) == "clearly faster than the original module"
    assert explain_best("a", None, WINS, NAMES) == "the only candidate that came through"


@pytest.mark.parametrize(
    ("verdict", "expected"),
    [
        ("tie", "no candidate is clearly faster: the best, OpenVINO, runs at 1.00 (0.90 to 1.10) times its speed"),
        (
            "undecided",
            "whether OpenVINO is faster could not be decided: it runs at 1.00 (0.90 to 1.10) times its speed",
        ),
    ],
)
def test_the_reason_of_an_original_that_stays(verdict, expected):
    comparisons = [compared("a", "baseline", "slower"), compared("b", "baseline", verdict)]
    assert explain_kept(["a", "b"], "baseline", comparisons, NAMES) == expected


def test_a_comparison_without_a_pair_explains_nothing():
    without = replace(compared("b", "baseline", "undecided", 1.0), pairs=0, low=0.001, high=1000.0)
    both = [compared("a", "baseline", "slower", 0.8), without]
    assert "OpenVINO" not in explain_kept(["a", "b"], "baseline", both, NAMES)
    assert "compared" in explain_kept(["b"], "baseline", [without], NAMES)


def test_a_comparison_of_too_few_pairs_says_so_instead_of_its_interval():
    wide = replace(compared("b", "baseline", "undecided", 1.0), pairs=4, low=1e-9, high=1e9)
    slower = compared("a", "baseline", "slower", 0.8)
    assert "too few pairs to know" in explain_kept(["b"], "baseline", [wide], NAMES)
    assert "ONNXRuntime" in explain_kept(["a", "b"], "baseline", [slower, wide], NAMES)
    assert "too few pairs to know" in warning_of_noise([wide], "baseline")
    assert "±11%" in warning_of_noise([replace(slower, low=0.72), wide], "baseline")


def test_no_reason_holds_a_key_or_a_second_sentence():
    keys = {key: f"{key}-7b5ad058fd695d66" for key in NAMES}
    names = {keys[key]: name for key, name in NAMES.items()}
    renamed = [replace(c, candidate=keys[c.candidate], opponent=keys[c.opponent]) for c in WINS]
    for reason in (
        explain_win(keys["a"], keys["b"], renamed, names),
        explain_kept([keys["a"]], keys["baseline"], renamed, names),
    ):
        assert "7b5ad058fd695d66" not in reason
        assert "; " not in reason


def test_a_comparison_that_was_cut_short_does_not_replace_one_that_decided():
    screened = compared("a", "baseline", "faster", 1.5)
    nothing = replace(compared("a", "baseline", "undecided", 1.0), pairs=0)
    assert replace_comparisons([screened], [nothing]) == (screened,)
    longer = replace(compared("a", "baseline", "undecided", 1.0), pairs=12)
    assert replace_comparisons([screened], [longer]) == (longer,)
    shorter = replace(compared("a", "baseline", "slower", 0.9), pairs=4)
    assert replace_comparisons([screened], [shorter]) == (shorter,)
    broken = replace(nothing, failed="a")
    assert replace_comparisons([screened], [broken]) == (broken,)


def test_entries_in_the_order_of_a_list():
    assert list(in_order({"c": 1, "other": 2, "a": 3, "b": 4}, ["a", "b", "c"])) == ["other", "a", "b", "c"]
