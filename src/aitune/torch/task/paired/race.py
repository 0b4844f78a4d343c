"""Rounds of blocks: every contestant that is still of interest runs once a round, in random order."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from aitune.torch.task.machine import Machine
from aitune.torch.task.paired.blocks import Block, BlockRunner
from aitune.torch.task.paired.duel import Duel

Result = TypeVar("Result")


@dataclass(frozen=True)
class RaceLimits:
    """When a race ends at the latest.

    Args:
        most_rounds: Rounds.
        end: Moment, in seconds of ``machine.now()``, before which the last round must be over.
        deadline: Moment before which the first call of a contestant must begin; ``None`` for no such moment. Without
            the first calls of all there is nothing to compare, so ``end`` does not hold for them.
    """

    most_rounds: int
    end: float
    deadline: float | None = None


class Race:
    """Runs rounds until every duel is over or time is up.

    A candidate leaves when it lost against the baseline (slower, or a tie), when another candidate is faster, or when
    it raises. Only contestants of duels that are still open run.

    Args:
        baseline: Key of the one that every candidate is up against; what it raises is raised.
        runners: Everyone's blocks by key, the baseline's included.
        duels: Every candidate against the baseline, and candidates among themselves.
        machine: Whose clock is read.
        seed: Seed of the orders.

    Attributes:
        out: Why a candidate left, by key.
        failed: What a candidate raised, by key.
    """

    def __init__(
        self, baseline: str, runners: Mapping[str, BlockRunner], duels: Sequence[Duel], machine: Machine, seed: int
    ) -> None:
        self.out: dict[str, str] = {}
        self.failed: dict[str, Exception] = {}
        self._baseline = baseline
        self._runners = runners
        self._duels = duels
        self._machine = machine
        self._random = random.Random(seed)

    def run(self, limits: RaceLimits) -> None:
        """Run rounds until every duel is over.

        Args:
            limits: When to end at the latest.
        """
        first: dict[str, Block] = {}
        for key, runner in self._runners.items():
            if limits.deadline is not None and self._machine.now() >= limits.deadline:
                return
            block = self._attempt(key, runner.warm_up)
            if block is not None:
                first[key] = block
        self._add_to_duels(first)
        for _ in range(limits.most_rounds):
            keys = self._keys_of_open_duels()
            expected = sum(self._runners[key].expected_seconds for key in keys)
            if not keys or self._machine.now() + expected >= limits.end:
                return
            self._run_round(keys)
            self._drop_losers()

    def name_of(self, key: str) -> str:
        """Return what people call a contestant.

        Args:
            key: Its key.
        """
        return self._runners[key].contestant.display_name

    def _run_round(self, keys: list[str]) -> None:
        self._random.shuffle(keys)
        blocks: dict[str, Block] = {}
        for key in keys:
            block = self._attempt(key, self._runners[key].run)
            if block is not None:
                blocks[key] = block
        self._add_to_duels(blocks)

    def _add_to_duels(self, blocks: Mapping[str, Block]) -> None:
        for duel in self._open_duels():
            if duel.candidate in blocks and duel.opponent in blocks:
                duel.add(blocks[duel.candidate], blocks[duel.opponent])

    def _attempt(self, key: str, action: Callable[[], Result]) -> Result | None:
        try:
            return action()
        except Exception as error:
            if key == self._baseline:
                raise
            self.failed[key] = error
            self.out[key] = f"{self.name_of(key)} raised {type(error).__name__}: {error}"
            return None

    def _drop_losers(self) -> None:
        for duel in self._duels:
            if duel.decision is None:
                continue
            verdict = duel.decision.verdict
            if duel.opponent == self._baseline:
                if verdict != "faster":
                    self.out.setdefault(
                        duel.candidate, f"{self.name_of(duel.candidate)} does not beat {self.name_of(self._baseline)}"
                    )
            elif verdict == "faster":
                self.out.setdefault(duel.opponent, f"{self.name_of(duel.candidate)} is faster")
            elif verdict == "slower":
                self.out.setdefault(duel.candidate, f"{self.name_of(duel.opponent)} is faster")

    def _open_duels(self) -> list[Duel]:
        return [
            duel
            for duel in self._duels
            if duel.decision is None and duel.candidate not in self.out and duel.opponent not in self.out
        ]

    def _keys_of_open_duels(self) -> list[str]:
        # In a fixed order, so that a seed gives the same orders again.
        wanted = {key for duel in self._open_duels() for key in (duel.candidate, duel.opponent)}
        return [key for key in self._runners if key in wanted]
