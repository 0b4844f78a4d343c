"""Nested ``if`` statements for several branches whose conditions begin alike: what they share is checked once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

_INDENT = "    "
# Python refuses source that is nested 100 levels deep.
_MOST_LEVELS = 60


@dataclass(frozen=True)
class Branch:
    """What to do when every condition holds.

    Args:
        conditions: Expressions, checked in order; a later one may use names that an earlier one binds.
        body: Lines of source that end by leaving the function.
    """

    conditions: tuple[str, ...]
    body: tuple[str, ...]


def decision_lines(branches: Sequence[Branch], indent: int = 1) -> list[str]:
    """Write branches as nested ``if`` statements; where none applies, the lines behind them are reached.

    At most one branch may apply to a call, or their order must not matter.

    Args:
        branches: The branches.
        indent: Levels of indentation of the first line.

    Returns:
        Lines of source.
    """
    by_first: dict[str | None, list[Branch]] = {}
    for number, branch in enumerate(branches):
        first = branch.conditions[0] if branch.conditions else None
        # Beyond the depth that Python allows nothing is shared any more.
        key = first if first is None or indent < _MOST_LEVELS else f"{number}: {first}"
        by_first.setdefault(key, []).append(branch)
    lines: list[str] = []
    for key in sorted(by_first, key=lambda key: key is None):
        group = by_first[key]
        shared = _shared_prefix(group)
        if not shared:
            lines += [_INDENT * indent + line for branch in group for line in branch.body]
            continue
        lines.append(f"{_INDENT * indent}if {' and '.join(shared)}:")
        rest = [Branch(branch.conditions[len(shared) :], branch.body) for branch in group]
        lines += decision_lines(rest, indent + 1)
    return lines


def _shared_prefix(branches: Sequence[Branch]) -> tuple[str, ...]:
    shared = branches[0].conditions
    for branch in branches[1:]:
        alike = 0
        for one, other in zip(shared, branch.conditions, strict=False):
            if one != other:
                break
            alike += 1
        shared = shared[:alike]
    return shared
