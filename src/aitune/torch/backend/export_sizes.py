"""Which sizes to export from: pure functions over the sizes that were recorded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

from aitune.torch.module.tensor_spec import Symbol

SymbolGroups: TypeAlias = tuple[tuple[str, ...], ...]
"""Groups of symbol names, each of two or more symbols that have the same value."""


def coincident_symbols(symbols: Mapping[str, Symbol], recorded: Sequence[Mapping[str, int]]) -> SymbolGroups:
    """Find the symbols that had the same value in every recorded call; the batch symbol stands alone.

    Args:
        symbols: Symbols by name.
        recorded: Values of the symbols in each recorded call.
    """
    groups: dict[tuple[int, ...], list[str]] = {}
    for name, symbol in symbols.items():
        if not symbol.is_batch:
            groups.setdefault(tuple(sizes[name] for sizes in recorded), []).append(name)
    return tuple(tuple(names) for names in groups.values() if len(names) > 1)


def choose_example(symbols: Mapping[str, Symbol], recorded: Sequence[Mapping[str, int]]) -> tuple[int, dict[str, int]]:
    """Choose the recorded call to export from, and the sizes to bring it to.

    Sizes of 0 and 1 are constants to torch.export, and equal sizes hide that two axes differ, so each size is 2 or more
    and differs from the others where the bounds allow it. Recorded sizes are kept where they will do: others need not
    fit each other. The batch size is taken from inside its range: a compiler that notes "16 or more" of a range that
    ends at 16 goes on with the one size 16.

    Args:
        symbols: Symbols by name.
        recorded: Values of the symbols in each recorded call, at least one.

    Returns:
        Position of the call, and the value of each symbol.
    """
    index = max(range(len(recorded)), key=lambda position: _suitability(recorded[position]))
    sizes = dict(recorded[index])
    grouped = coincident_symbols(symbols, recorded)
    single = [(name,) for name in symbols if not any(name in group for group in grouped)]
    # The batch size comes last: it is the one that can be chosen freely.
    ordered = sorted([*grouped, *single], key=lambda group: symbols[group[0]].is_batch)
    taken: set[int] = set()
    for group in ordered:
        low, high = max(symbols[name].min for name in group), min(symbols[name].max for name in group)
        value = sizes[group[0]]
        free = symbols[group[0]].is_batch
        if free and value == high and high > 3:
            value = max((low + high) // 2, 2)
        if value < 2 or (free and value in taken):
            lowest = max(low, 2)
            candidates = range(lowest, min(high, lowest + len(symbols) + 1) + 1)
            value = next((size for size in candidates if size not in taken), candidates[0] if candidates else value)
        taken.add(value)
        sizes.update(dict.fromkeys(group, value))
    return index, sizes


def _suitability(sizes: Mapping[str, int]) -> tuple[int, int, int]:
    values = list(sizes.values())
    return sum(value >= 2 for value in values), len(set(values)), -sum(values)
