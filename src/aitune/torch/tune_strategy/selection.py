"""Choosing, as pure functions of what was measured."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
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


def in_order(entries: Mapping[str, Entry], keys: Sequence[str]) -> dict[str, Entry]:
    """Return entries in the order of some keys; those of other keys come first, in the order that they have.

    Args:
        entries: Entries by key.
        keys: The order.
    """
    places = {key: place for place, key in enumerate(keys)}
    return dict(sorted(entries.items(), key=lambda item: places.get(item[0], -1)))


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
    """Return both, of pairs that were compared again only the one that counts more.

    That is the later one, unless its time was cut so short that it decided nothing on fewer pairs of blocks.

    Args:
        before: Comparisons so far.
        later: Comparisons that count more.
    """
    earlier = list(before)
    by_pair = {_pair(comparison): comparison for comparison in earlier}
    latest = [c for c in later if not _says_less(c, by_pair.get(_pair(c)))]
    again = {_pair(comparison) for comparison in latest}
    return (*(c for c in earlier if _pair(c) not in again), *latest)


def _pair(comparison: PairedComparison) -> frozenset[str]:
    return frozenset((comparison.candidate, comparison.opponent))


def _says_less(later: PairedComparison, earlier: PairedComparison | None) -> bool:
    if earlier is None or later.failed is not None:
        return False
    return later.verdict == "undecided" and later.pairs < earlier.pairs
