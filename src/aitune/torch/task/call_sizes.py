"""Which sizes to compare at: the corners of the range of a graph, and points inside it."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

import torch

from aitune.torch.module.tensor_spec import Symbol

_MOST_PAIRS = 6


def corner_sizes(symbols: Mapping[str, Symbol], recorded: Sequence[Mapping[str, int]]) -> list[dict[str, int]]:
    """List combinations of sizes worth trying, the most telling first, each once.

    Batch 1 where it is inside; everything smallest; everything largest; each symbol at its largest and smallest with
    the others as recorded; each symbol at a size inside its range that was never recorded, odd where possible; each at
    its ``opt``. Symbols that agreed in every recorded call (ids and their mask) go together in all of these; at the end
    they are tried apart, once. Others are made equal, pair by pair, where their ranges meet: a module that branches on
    that ("as many queries as keys") is exported for sizes that differ.

    Args:
        symbols: The symbols of a graph.
        recorded: Sizes of every recorded call, at least one.
    """
    base = dict(recorded[0])
    groups = _groups(symbols, recorded)
    found: list[dict[str, int]] = []

    def add(sizes: Mapping[str, int]) -> None:
        if symbols and {**base, **sizes} not in found:
            found.append({**base, **sizes})

    for name, symbol in symbols.items():
        if symbol.is_batch and symbol.min <= 1 <= symbol.max:
            add({name: 1})
    add({name: symbol.min for name, symbol in symbols.items()})
    add({name: symbol.max for name, symbol in symbols.items()})
    for group in groups:
        add(dict.fromkeys(group, symbols[group[0]].max))
        add(dict.fromkeys(group, symbols[group[0]].min))
    for group in groups:
        unseen = _unseen_size(symbols[group[0]], {sizes[group[0]] for sizes in recorded})
        if unseen is not None:
            add(dict.fromkeys(group, unseen))
    for one, other in itertools.islice(itertools.combinations(groups, 2), _MOST_PAIRS):
        low = max(symbols[one[0]].min, symbols[other[0]].min)
        high = min(symbols[one[0]].max, symbols[other[0]].max)
        if low <= high:
            add(dict.fromkeys((*one, *other), (low + high + 1) // 2))
    for group in groups:
        opt = symbols[group[0]].opt
        if opt is not None:
            add(dict.fromkeys(group, opt))
    for first, *others in groups:
        if others:
            add({first: symbols[first].min, **dict.fromkeys(others, symbols[first].max)})
    return found


def interior_sizes(
    symbols: Mapping[str, Symbol],
    recorded: Sequence[Mapping[str, int]],
    known: Sequence[Mapping[str, int]],
    count: int,
    seed: int,
) -> list[dict[str, int]]:
    """Draw points inside the range at random, where corners say nothing: a kernel may be wrong for some sizes only.

    Args:
        symbols: The symbols of a graph.
        recorded: Sizes of every recorded call, at least one; symbols that agreed in all of them agree here.
        known: Sizes that are compared anyway; they are not drawn.
        count: Most points.
        seed: Seed of the draws.
    """
    generator = torch.Generator().manual_seed(seed)
    groups = _groups(symbols, recorded)
    taken = [dict(sizes) for sizes in (*known, *recorded)]
    found: list[dict[str, int]] = []
    # A small range has few points that are new; the draws are bounded all the same.
    for _ in range(8 * count if symbols else 0):
        sizes: dict[str, int] = {}
        for group in groups:
            symbol = symbols[group[0]]
            # The ends are corners; where nothing else is left, they are drawn all the same.
            inset = 1 if symbol.max - symbol.min >= 2 else 0
            size = int(torch.randint(symbol.min + inset, symbol.max + 1 - inset, (), generator=generator))
            sizes.update(dict.fromkeys(group, size))
        drawn = {name: sizes[name] for name in symbols}
        if drawn not in taken and len(found) < count:
            taken.append(drawn)
            found.append(drawn)
    return found


def _groups(symbols: Mapping[str, Symbol], recorded: Sequence[Mapping[str, int]]) -> list[list[str]]:
    """Put together the symbols that had one range and the same size in every recorded call."""
    groups: dict[object, list[str]] = {}
    for name, symbol in symbols.items():
        seen = tuple(sizes[name] for sizes in recorded)
        key: object = name if symbol.is_batch else (symbol.min, symbol.max, symbol.opt, seen)
        groups.setdefault(key, []).append(name)
    return list(groups.values())


def _unseen_size(symbol: Symbol, seen: set[int]) -> int | None:
    """Return a size inside the range that was not recorded: odd and near the middle, where there is one."""
    middle = (symbol.min + symbol.max) // 2
    near = sorted(
        (size for size in range(max(symbol.min, middle - 64), min(symbol.max, middle + 64) + 1) if size not in seen),
        key=lambda size: (size in (symbol.min, symbol.max), size % 2 == 0, abs(size - middle)),
    )
    return near[0] if near else None
