"""Choosing, as pure functions of what was measured."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cmp_to_key
from typing import TypeVar

from aitune.torch.task.outcome import PairedComparison

Entry = TypeVar("Entry")


@dataclass(frozen=True)
class Choice:
    """A winner and why.

    Args:
        key: Key of the winner.
        reason: Why it won, in words.
    """

    key: str
    reason: str


def rank(entries: Sequence[Entry], is_better: Callable[[Entry, Entry], bool]) -> list[Entry]:
    """Sort entries best first; those of which neither is better keep their order.

    Args:
        entries: In order of preference.
        is_better: Whether the first is better than the second.
    """

    def order(left: Entry, right: Entry) -> int:
        if is_better(left, right):
            return -1
        return 1 if is_better(right, left) else 0

    return sorted(entries, key=cmp_to_key(order))


def choose_finalist(ranked: Sequence[str], preference: Sequence[str], comparisons: Sequence[PairedComparison],
                    baseline: str | None) -> Choice:  # fmt: skip
    """Choose among candidates, the baseline apart.

    Those that are known to beat the baseline come before those that are not. Between the two best the paired
    comparison decides; when it is a tie or undecided, the one that comes first in the list stays.

    Args:
        ranked: Keys of the candidates, best first by their own measurements; at least one.
        preference: All keys in the order of the list.
        comparisons: Paired comparisons, with the baseline and among each other.
        baseline: Key of the baseline, if there is one.
    """
    beats = {c.candidate for c in comparisons if c.opponent == baseline and c.verdict == "faster"}
    standing = [key for key in ranked if key in beats] or list(ranked)
    best = standing[0]
    for other in standing[1:]:
        comparison = _between(comparisons, best, other)
        if comparison is None:
            continue
        if comparison.verdict in ("faster", "slower"):
            winner = comparison.candidate if comparison.verdict == "faster" else comparison.opponent
        else:
            winner = min(best, other, key=list(preference).index)
        loser = other if winner == best else best
        return Choice(winner, _words(comparison, winner, loser))
    return Choice(best, "the best by its own measurements" if len(standing) > 1 else "the only candidate left")


def beats_baseline(key: str, baseline: str, comparisons: Sequence[PairedComparison]) -> tuple[bool, str] | None:
    """Say whether a candidate is faster than the baseline by more than the noise, and why.

    Args:
        key: Key of the candidate.
        baseline: Key of the baseline.
        comparisons: Paired comparisons.

    Returns:
        ``None`` when the two were not compared.
    """
    for comparison in comparisons:
        if (comparison.candidate, comparison.opponent) == (key, baseline):
            return comparison.verdict == "faster", comparison.reason
    return None


def _between(comparisons: Sequence[PairedComparison], first: str, second: str) -> PairedComparison | None:
    return next((c for c in comparisons if {c.candidate, c.opponent} == {first, second}), None)


def _words(comparison: PairedComparison, winner: str, loser: str) -> str:
    if comparison.verdict in ("faster", "slower"):
        return f"faster than {loser} in a paired comparison ({comparison.reason})"
    return f"comes before {loser} in the list, and neither is clearly faster ({comparison.reason})"
