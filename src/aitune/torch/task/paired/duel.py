"""Two contestants against each other: when to look, what the interval says, and why."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from aitune.torch.task.outcome import Verdict
from aitune.torch.task.paired.blocks import Block, undisturbed
from aitune.torch.task.paired.signed_rank import (
    CentreInterval,
    few_differences_interval,
    robust_deviation,
    signed_rank_interval,
)

_LARGEST_DEVIATION = 0.15
"""Disturbed pairs are used as well, but only while the ratios scatter less than this (as a logarithm)."""

_SCATTERED_MARGIN = 0.10
"""Where they scatter more, only a difference counts that is this much larger (as a logarithm) than it would have to be:
what disturbs one contestant more than the other shifts the ratio by some percent, and does not make it double."""


@dataclass(frozen=True)
class Rules:
    """When a ratio of times is called what.

    Args:
        minimum_gain: A contestant is faster only by more than this share.
        tie_within: Ratios inside this share are a tie, at any look.
        final_tie_within: The same when time is up.
        alpha: Probability that the interval of one look misses.
        looks: Numbers of pairs at which the interval is looked at.
    """

    minimum_gain: float
    tie_within: float
    final_tie_within: float
    alpha: float
    looks: tuple[int, ...]


@dataclass(frozen=True)
class Decision:
    """What a duel ended with.

    Args:
        verdict: Whether the candidate is faster than the opponent.
        interval: Logarithm of opponent time over candidate time.
        margin: How close two that tie are known to be; ``None`` for the other verdicts.
    """

    verdict: Verdict
    interval: CentreInterval
    margin: float | None = None


def judge(interval: CentreInterval, rules: Rules) -> Decision | None:
    """Say what an interval decides at a look, ``None`` for nothing yet.

    Args:
        interval: Logarithm of opponent time over candidate time.
        rules: The margins.
    """
    threshold = math.log1p(rules.minimum_gain)
    if interval.low > threshold:
        return Decision("faster", interval)
    if interval.high < -threshold:
        return Decision("slower", interval)
    if _is_within(interval, rules.tie_within):
        return Decision("tie", interval, rules.tie_within)
    return None


def _is_within(interval: CentreInterval, share: float) -> bool:
    return -math.log1p(share) < interval.low and interval.high < math.log1p(share)


class Duel:
    """Pairs of blocks of two contestants, and the looks taken at them.

    Args:
        candidate: Key of the one that is judged.
        opponent: Key of the one that it is judged against.
        rules: When to look, and what is called what.
    """

    def __init__(self, candidate: str, opponent: str, rules: Rules) -> None:
        self.candidate = candidate
        self.opponent = opponent
        self.decision: Decision | None = None
        self._rules = rules
        self._pairs: list[tuple[Block, Block]] = []
        self._next_look = {"clean": 0, "all": 0}

    @property
    def pairs(self) -> int:
        """Pairs so far."""
        return len(self._pairs)

    @property
    def clean_pairs(self) -> int:
        """Pairs so far in which neither block was disturbed."""
        return len(self._clean_differences())

    @property
    def opponent_blocks(self) -> list[Block]:
        """Blocks of the opponent so far, which show how steady the machine is."""
        return [opponent for _, opponent in self._pairs]

    def add(self, candidate: Block, opponent: Block) -> None:
        """Add a pair of blocks, and look at the interval when it is time to.

        Args:
            candidate: Block of the candidate.
            opponent: Block of the opponent, from the same round.
        """
        self._pairs.append((candidate, opponent))
        if self.decision is None:
            # Both looks are taken when they are due: one put off until the scatter allows it would be a further look.
            clean, every = self._look("clean", self._clean_differences()), self._look("all", self._differences())
            self.decision = self._judge(clean) or self._judge_disturbed(every)

    def finish(self) -> Decision | None:
        """Decide with what there is, because time is up; ``None`` without a single pair."""
        if self.decision is None and self._pairs:
            self.decision = self._final_decision()
        return self.decision

    def estimate(self) -> float:
        """Return the logarithm of opponent time over candidate time as it looks now, 0 without a pair."""
        if self.decision is not None:
            return self.decision.interval.estimate
        return self._current_interval().estimate if self._pairs else 0.0

    def _look(self, stream: str, differences: Sequence[float]) -> CentreInterval | None:
        looks, position = self._rules.looks, self._next_look[stream]
        if position >= len(looks) or len(differences) < looks[position]:
            return None
        while position < len(looks) and looks[position] <= len(differences):
            position += 1
        self._next_look[stream] = position
        return signed_rank_interval(differences, self._rules.alpha)

    def _judge(self, interval: CentreInterval | None) -> Decision | None:
        return None if interval is None else judge(interval, self._rules)

    def _judge_disturbed(self, interval: CentreInterval | None) -> Decision | None:
        decision = self._judge(interval)
        if interval is None or decision is None or self._is_calm():
            return decision
        clear = math.log1p(self._rules.minimum_gain) + _SCATTERED_MARGIN
        return decision if interval.low > clear or interval.high < -clear else None

    def _final_decision(self) -> Decision:
        interval = self._current_interval()
        is_sure = interval.confidence >= 1.0 - self._rules.alpha
        if is_sure and self._has_looks_left():
            # One that will not come is taken now; alpha was set aside for all of them.
            decision = self._judge_disturbed(interval)
            if decision is not None:
                return decision
        if is_sure and _is_within(interval, self._rules.final_tie_within):
            return Decision("tie", interval, self._rules.final_tie_within)
        return Decision("undecided", interval)

    def _has_looks_left(self) -> bool:
        return all(position < len(self._rules.looks) for position in self._next_look.values())

    def _current_interval(self) -> CentreInterval:
        clean, every = self._clean_differences(), self._differences()
        for differences in (clean, every):
            interval = signed_rank_interval(differences, self._rules.alpha)
            if interval is not None:
                return interval
        return few_differences_interval(clean if 2 * len(clean) >= len(every) else every, self._rules.alpha)

    def _is_calm(self) -> bool:
        return robust_deviation(self._differences()) < _LARGEST_DEVIATION

    def _differences(self) -> list[float]:
        return [_log_ratio(pair) for pair in self._pairs]

    def _clean_differences(self) -> list[float]:
        left_alone = zip(
            undisturbed(candidate for candidate, _ in self._pairs),
            undisturbed(opponent for _, opponent in self._pairs),
            strict=True,
        )
        clean = [all(both) for both in left_alone]
        return [_log_ratio(pair) for pair, is_clean in zip(self._pairs, clean, strict=True) if is_clean]


def _log_ratio(pair: tuple[Block, Block]) -> float:
    candidate, opponent = pair
    return math.log(opponent.seconds / candidate.seconds)
