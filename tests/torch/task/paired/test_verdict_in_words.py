import pytest

from aitune.torch.task.paired.blocks import Block
from aitune.torch.task.paired.duel import Duel, Rules
from aitune.torch.task.paired.wording import Circumstances, explain

NAMES = {"a": "the candidate", "b": "the original module"}


@pytest.mark.parametrize("ended_early", [None, "not measured further, as another is faster"])
def test_an_interval_that_says_nothing_is_not_told(ended_early: str | None) -> None:
    duel = Duel("a", "b", Rules(minimum_gain=0.01, tie_within=0.02, final_tie_within=0.05, alpha=0.005, looks=(10,)))
    for seconds in (0.01, 0.1, 5.0, 100.0):
        duel.add(Block(1.0, 1), Block(seconds, 1))
    decision = duel.finish()
    assert decision is not None
    told = explain(duel, decision, Circumstances(3.0, 3.0, None, 1, ended_early), NAMES)
    assert decision.verdict == "undecided"
    assert told.startswith("undecided")
    assert "too few pairs to know" in told
    assert "ratio" not in told
