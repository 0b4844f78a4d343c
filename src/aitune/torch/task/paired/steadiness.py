"""How steady the machine was during a comparison: what made an interval as wide as it is."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from aitune.torch.task.paired.blocks import Block
from aitune.torch.task.paired.signed_rank import CentreInterval

_FEWEST_BLOCKS = 6
_OUTLIER_FACTOR = 1.5
_NOTABLE_WIDTH = 0.05
_NOTABLE_DRIFT = 0.05
_THIRDS = 3


@dataclass(frozen=True)
class Steadiness:
    """How much the time of one contestant changed over its blocks.

    Args:
        drift: Share by which it took longer in the last third of its blocks than in the first; below 0 for less.
        outliers: Blocks that took more than 1.5 times its median.
        blocks: Blocks in all.
    """

    drift: float
    outliers: int
    blocks: int

    @classmethod
    def of(cls, blocks: Sequence[Block]) -> Steadiness:
        """Look at the blocks of one contestant, in order."""
        times = [block.seconds for block in blocks]
        if len(times) < _FEWEST_BLOCKS:
            return cls(0.0, 0, len(times))
        third = len(times) // _THIRDS
        drift = statistics.median(times[-third:]) / statistics.median(times[:third]) - 1.0
        limit = _OUTLIER_FACTOR * statistics.median(times)
        return cls(drift, sum(time > limit for time in times), len(times))

    def describe(self) -> list[str]:
        """Say what stands out; nothing on a steady machine."""
        seen = []
        if abs(self.drift) >= _NOTABLE_DRIFT:
            seen.append(f"its speed drifted by {abs(self.drift):.0%} meanwhile")
        if self.outliers:
            seen.append(
                f"{self.outliers} of {self.blocks} blocks took more than {_OUTLIER_FACTOR:g} times the usual time"
            )
        return seen


def half_width(interval: CentreInterval) -> float:
    """Return half the width of an interval of a logarithm, as a share of the ratio: 0.05 is known to ±5%."""
    return math.expm1((interval.high - interval.low) / 2.0)


def is_wide(interval: CentreInterval) -> bool:
    """Say whether an interval is so wide that it should be said why."""
    return half_width(interval) > _NOTABLE_WIDTH
