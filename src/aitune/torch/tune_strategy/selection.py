"""Choosing, as pure functions of what was measured."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from aitune.torch.task.outcome import PairedComparison, Verdict

Entry = TypeVar("Entry")

_MIRRORED: dict[Verdict, Verdict] = {"faster": "slower", "slower": "faster", "tie": "tie", "undecided": "undecided"}


def rank(
    entries: Iterable[Entry], is_better: Callable[[Entry, Entry], bool], baseline: Entry | None = None
) -> list[Entry]:
    """Sort entries best first: again and again the first one that no other is better than.

    "Better" need not be transitive: of three whose intervals overlap in a chain, the outer two may differ while each
    ties with the middle one. An entry never comes before one that is better than it, unless they are better than each
    other in a circle, in which case the order given holds, or only one of them is better than the baseline.

    Args:
        entries: In order of preference, which decides between entries of which neither is better.
        is_better: Whether the first is better than the second.
        baseline: What they are up against; those that are better than it come first. ``None`` when nothing is.
    """
    listed = list(entries)
    # Who beats the baseline and who is better of two was measured apart, so the two need not fit together.
    ahead = [entry for entry in listed if baseline is None or is_better(entry, baseline)]
    behind = [entry for entry in listed if not any(entry is other for other in ahead)]
    return [*_unbeaten_first(ahead, is_better), *_unbeaten_first(behind, is_better)]


def _unbeaten_first(entries: Sequence[Entry], is_better: Callable[[Entry, Entry], bool]) -> list[Entry]:
    left = list(entries)
    ranked: list[Entry] = []
    while left:
        unbeaten = (one for one in left if not any(is_better(other, one) for other in left if other is not one))
        best = next(unbeaten, left[0])
        ranked.append(best)
        left = [entry for entry in left if entry is not best]
    return ranked


def verdict_between(first: str, second: str, comparisons: Iterable[PairedComparison]) -> Verdict | None:
    """Return the verdict on ``first`` against ``second``, whichever of the two was the candidate.

    Args:
        first: Key of the one that is judged.
        second: Key of the other.
        comparisons: Paired comparisons.

    Returns:
        ``None`` when the two were not compared.
    """
    for comparison in comparisons:
        if (comparison.candidate, comparison.opponent) == (first, second):
            return comparison.verdict
        if (comparison.candidate, comparison.opponent) == (second, first):
            return _MIRRORED[comparison.verdict]
    return None


def replace_comparisons(
    before: Iterable[PairedComparison], later: Iterable[PairedComparison]
) -> tuple[PairedComparison, ...]:
    """Return both, without the earlier ones of pairs that were compared again.

    Args:
        before: Comparisons so far.
        later: Comparisons that count more.
    """
    latest = tuple(later)
    again = {frozenset((c.candidate, c.opponent)) for c in latest}
    return (*(c for c in before if frozenset((c.candidate, c.opponent)) not in again), *latest)
