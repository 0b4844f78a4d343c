"""Paired comparison of callables: measured in turn, in the same run, until the difference is clear or time is up.

Machines drift, so two times compare only when they were taken side by side. Each round runs one block of calls of every
contestant, in random order; the logarithm of the ratio of two blocks of a round is one observation. Observations are
summed up by the Hodges-Lehmann estimate with the exact Wilcoxon signed-rank interval, looked at after set numbers of
pairs only. Pairs that other processes disturbed are known, and are left out as long as enough others come in.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from aitune.exceptions import AITuneUserInputError
from aitune.torch.task.machine import LOCAL_MACHINE, Machine
from aitune.torch.task.outcome import PairedComparison
from aitune.torch.task.paired.blocks import BlockRunner, Contestant
from aitune.torch.task.paired.duel import Duel, Rules
from aitune.torch.task.paired.race import Race, RaceLimits
from aitune.torch.task.paired.wording import Circumstances, explain
from aitune.torch.task.timed_call import measuring_conditions, timer_for
from aitune.utils.validation import number_at_least, positive_integer, positive_number

__all__ = ["Contestant", "PlayoffConfig", "compare", "playoff", "screen"]

_FINAL_TIE_WITHIN = 0.05
_PAUSE_ONE_THREAD = 0.010
_PAUSE_SEVERAL_THREADS = 0.050
_FIRST_LOOK_OF_SEVERAL = 12

SCREEN_SECONDS = 3.0
"""Longest time of a :func:`screen`, unless it is given less."""

_UNKNOWN = 1000.0
"""Without a single pair the ratio may be anything up to this, or one over it; infinity could not be written as JSON."""


@dataclass(frozen=True)
class PlayoffConfig:
    """Settings of a comparison.

    Args:
        block_seconds: Length of a block of calls; a block holds one call at least.
        pause_seconds: Rest before a block; ``None`` is 10 ms with one thread and 50 ms with several, whose pools spin
            for a while after their last call and steal cores from the next one.
        num_threads: Threads that a call may use; ``None`` is torch's number.
        minimum_gain: One is faster only by more than this share.
        tie_within: Ratios known to lie inside this share are a tie.
        alpha: Probability that the interval of one look misses; divided by the number of pairs of contestants.
        looks: Numbers of pairs of blocks after which the interval is looked at, upwards.
        pair_budget_seconds: Longest time for two contestants.
        group_budget_seconds: Longest time for three or more.
        seed: Seed of the orders.

    Raises:
        AITuneUserInputError: A number is out of range.
    """

    block_seconds: float = 0.050
    pause_seconds: float | None = None
    num_threads: int | None = None
    minimum_gain: float = 0.01
    tie_within: float = 0.02
    alpha: float = 0.005
    looks: tuple[int, ...] = (10, 14, 20, 28, 40, 56, 80, 112)
    pair_budget_seconds: float = 20.0
    group_budget_seconds: float = 45.0
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("block_seconds", "tie_within", "pair_budget_seconds", "group_budget_seconds"):
            positive_number(getattr(self, name), name)
        number_at_least(self.minimum_gain, "minimum_gain", 0.0)
        if self.pause_seconds is not None:
            number_at_least(self.pause_seconds, "pause_seconds", 0.0)
        if self.num_threads is not None:
            positive_integer(self.num_threads, "num_threads")
        if positive_number(self.alpha, "alpha") >= 1.0:
            raise AITuneUserInputError(f"alpha must lie between 0 and 1, got {self.alpha!r}")
        if isinstance(self.looks, str) or not isinstance(self.looks, Sequence) or not self.looks:
            raise AITuneUserInputError(f"looks must be a sequence of numbers of pairs, got {self.looks!r}")
        looks = tuple(positive_integer(look, "every entry of looks") for look in self.looks)
        if any(later <= earlier for earlier, later in itertools.pairwise(looks)):
            raise AITuneUserInputError(f"looks must grow, got {self.looks!r}")
        object.__setattr__(self, "looks", looks)

    @property
    def threads(self) -> int:
        """Threads that a call may use."""
        return self.num_threads if self.num_threads is not None else torch.get_num_threads()

    @property
    def pause(self) -> float:
        """Seconds of rest before a block."""
        if self.pause_seconds is not None:
            return self.pause_seconds
        return _PAUSE_ONE_THREAD if self.threads == 1 else _PAUSE_SEVERAL_THREADS


def compare(
    candidate: Contestant,
    opponent: Contestant,
    config: PlayoffConfig | None = None,
    *,
    device: torch.device | str = "cpu",
    deadline: float | None = None,
    machine: Machine = LOCAL_MACHINE,
) -> PairedComparison:
    """Compare two callables by their time per sample.

    Args:
        candidate: The one that is judged.
        opponent: The one that it is judged against; what it raises is raised.
        config: Settings; ``None`` takes the defaults.
        device: Where both run; it decides what clock is used.
        deadline: Moment, in seconds of :func:`time.monotonic`, at which to end with what there is.
        machine: Whose clocks are read.

    Returns:
        The ratio with its interval, and the verdict. A candidate that raised is undecided, with the error as reason.

    Raises:
        AITuneUserInputError: Both have the same key.
    """
    return playoff([candidate], opponent, config, device=device, deadline=deadline, machine=machine)[0]


def screen(
    candidate: Contestant,
    baseline: Contestant,
    config: PlayoffConfig | None = None,
    *,
    seconds: float = SCREEN_SECONDS,
    device: torch.device | str = "cpu",
    deadline: float | None = None,
    machine: Machine = LOCAL_MACHINE,
) -> PairedComparison:
    """Compare with the baseline in a few seconds: one look after eight pairs, or after what the time allows.

    Its interval is wider than that of :func:`compare`, and says so in its confidence.

    Args:
        candidate: The one that is judged.
        baseline: The one that it is judged against; what it raises is raised.
        config: Settings; looks and alpha are replaced by shorter ones, the budget by ``seconds``.
        seconds: Longest time.
        device: Where both run.
        deadline: Moment, in seconds of :func:`time.monotonic`, at which to end with what there is.
        machine: Whose clocks are read.
    """
    short = replace(config or PlayoffConfig(), looks=(8,), alpha=0.02, pair_budget_seconds=seconds)
    return compare(candidate, baseline, short, device=device, deadline=deadline, machine=machine)


def playoff(
    contestants: Sequence[Contestant],
    baseline: Contestant,
    config: PlayoffConfig | None = None,
    *,
    device: torch.device | str = "cpu",
    deadline: float | None = None,
    machine: Machine = LOCAL_MACHINE,
) -> tuple[PairedComparison, ...]:
    """Compare every contestant with the baseline, and the two best with each other.

    Args:
        contestants: The candidates, without the baseline; at least one.
        baseline: The one to beat; what it raises is raised.
        config: Settings; ``None`` takes the defaults.
        device: Where all run; it decides what clock is used.
        deadline: Moment, in seconds of :func:`time.monotonic`, at which to end with what there is.
        machine: Whose clocks are read.

    Returns:
        One comparison with the baseline for each contestant, in their order; then, when neither of the two best lost
        against the baseline, these two with each other, the later one of the list as candidate.

    Raises:
        AITuneUserInputError: There is no contestant, or two have the same key.
    """
    config = config or PlayoffConfig()
    _check_keys(contestants, baseline)
    timer = timer_for(device, machine)
    runners = {
        entry.key: BlockRunner(entry, timer, machine, config.block_seconds, config.pause)
        for entry in (baseline, *contestants)
    }
    rules = _rules(config, len(runners))
    against_baseline = [Duel(entry.key, baseline.key, rules) for entry in contestants]
    among = [Duel(later.key, earlier.key, rules) for earlier, later in itertools.combinations(contestants, 2)]
    race = Race(baseline.key, runners, [*against_baseline, *among], machine, config.seed)
    budget = config.pair_budget_seconds if len(contestants) == 1 else config.group_budget_seconds
    watch = _Watch(machine)
    end = watch.begin + budget if deadline is None else min(watch.begin + budget, deadline)
    with measuring_conditions():
        race.run(RaceLimits(rules.looks[-1], end, deadline))
    around = watch.circumstances(max(end - watch.begin, 0.0), config.threads)
    results = [_comparison(duel, race, around) for duel in against_baseline]
    best = _two_best(against_baseline, among, race)
    return (*results, *([] if best is None else [_comparison(best, race, around)]))


def _check_keys(contestants: Sequence[Contestant], baseline: Contestant) -> None:
    if not contestants:
        raise AITuneUserInputError("a playoff needs at least one contestant besides the baseline, got none")
    keys = [baseline.key, *(entry.key for entry in contestants)]
    if len(set(keys)) < len(keys):
        raise AITuneUserInputError(f"every contestant needs a key of its own, got {keys}")


def _rules(config: PlayoffConfig, count: int) -> Rules:
    looks: Sequence[int] = config.looks
    if count > 2:
        # A smaller alpha needs more pairs before the exact interval exists.
        looks = sorted({max(look, _FIRST_LOOK_OF_SEVERAL) for look in config.looks})
    return Rules(
        config.minimum_gain, config.tie_within, _FINAL_TIE_WITHIN, config.alpha / math.comb(count, 2), tuple(looks)
    )


class _Watch:
    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self.begin = machine.now()
        self._busy = machine.busy_core_seconds()
        self._own = machine.process_seconds()

    def circumstances(self, budget_seconds: float, num_threads: int) -> Circumstances:
        seconds = self._machine.now() - self.begin
        return Circumstances(seconds, budget_seconds, self._others_share(seconds), num_threads)

    def _others_share(self, seconds: float) -> float | None:
        busy = self._machine.busy_core_seconds()
        if busy is None or self._busy is None or seconds <= 0:
            return None
        others = (busy - self._busy) - (self._machine.process_seconds() - self._own)
        return min(max(others / (seconds * self._machine.num_cores), 0.0), 1.0)


def _comparison(duel: Duel, race: Race, around: Circumstances) -> PairedComparison:
    failed = next((key for key in (duel.candidate, duel.opponent) if key in race.failed), None)
    failure = None if failed is None else race.out[failed]
    decision = duel.finish()
    if decision is None:
        return PairedComparison(
            duel.candidate, duel.opponent, 1.0, 1.0 / _UNKNOWN, _UNKNOWN, 0.0, "undecided", 0, 0, around.seconds,
            failure or f"undecided: no pair of blocks fitted into {around.budget_seconds:.1f} s; give more time",
            failed,
        )  # fmt: skip
    left = race.out.get(duel.candidate)
    names = {key: race.name_of(key) for key in (duel.candidate, duel.opponent)}
    reason = explain(duel, decision, replace(around, ended_early=left and f"not measured further, as {left}"), names)
    interval = decision.interval
    return PairedComparison(
        candidate=duel.candidate,
        opponent=duel.opponent,
        speedup=math.exp(interval.estimate),
        low=math.exp(interval.low),
        high=math.exp(interval.high),
        confidence=interval.confidence,
        verdict="undecided" if failure else decision.verdict,
        pairs=duel.pairs,
        clean_pairs=duel.clean_pairs,
        seconds=around.seconds,
        reason=failure or reason,
        failed=failed,
    )


def _two_best(against_baseline: Sequence[Duel], among: Sequence[Duel], race: Race) -> Duel | None:
    lost = {duel.candidate for duel in against_baseline if duel.decision and duel.decision.verdict in ("slower", "tie")}
    standing = [duel for duel in against_baseline if duel.candidate not in lost and duel.candidate not in race.failed]
    if len(standing) < 2:
        return None
    best = {duel.candidate for duel in sorted(standing, key=Duel.estimate, reverse=True)[:2]}
    return next((duel for duel in among if {duel.candidate, duel.opponent} == best and duel.pairs), None)
