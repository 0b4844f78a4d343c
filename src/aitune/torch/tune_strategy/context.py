"""What a strategy is given for one run and its signatures cannot carry."""

from __future__ import annotations

from dataclasses import dataclass, field

from aitune.events import Emitter
from aitune.torch.task.accuracy_budget import AccuracyBudget
from aitune.torch.task.input_factory import InputFactory
from aitune.torch.task.machine import LOCAL_MACHINE, Machine
from aitune.torch.task.playoff import PlayoffConfig
from aitune.torch.tune_strategy.cost_history import CostHistory


@dataclass(frozen=True)
class TuningContext:
    """Surroundings of one run; the entry point makes it, a strategy only reads it.

    Args:
        emitter: Where events go.
        batch_sizes: Batch sizes that the user named; ``None`` when the run is free to look for better ones.
        deadline: Moment, in seconds of :func:`time.monotonic`, after which no further candidate is begun.
        accuracy_budget: What candidates that give precision away have to keep.
        input_factory: Makes the calls of wanted sizes that candidates are compared on.
        playoff: Settings of paired comparisons; ``None`` takes them from the configuration.
        seed: Seed of random orders and of inputs that are made up for checks.
        machine: Whose clocks are read.
        cost_history: What builds cost before; by default nothing is known, and nothing is kept.
    """

    emitter: Emitter = field(default_factory=Emitter)
    batch_sizes: tuple[int, ...] | None = None
    deadline: float | None = None
    accuracy_budget: AccuracyBudget | None = None
    input_factory: InputFactory | None = None
    playoff: PlayoffConfig | None = None
    seed: int = 0
    machine: Machine = LOCAL_MACHINE
    cost_history: CostHistory = field(default_factory=CostHistory)

    def is_over(self) -> bool:
        """Whether the deadline has passed."""
        left = self.seconds_left()
        return left is not None and left <= 0

    def seconds_left(self) -> float | None:
        """Seconds until the deadline, below 0 after it; ``None`` when there is none."""
        return None if self.deadline is None else self.deadline - self.machine.now()
