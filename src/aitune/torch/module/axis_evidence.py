"""Why an axis varies: what the recorded calls showed, in words for a report."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations

from aitune.torch.module.axis_inference import Observation, symbol_values
from aitune.torch.module.locator import format_locator
from aitune.torch.module.tensor_spec import Symbol, TensorSpec

_MOST_EXAMPLES = 4


def explain_axes(
    specs: Sequence[TensorSpec], observations: Sequence[Observation], declared: Sequence[str] = ()
) -> tuple[str, ...]:
    """Say for every symbol which axes carry it and which calls made it so, and which symbols were always equal.

    Args:
        specs: The input tensors with their axes.
        observations: The recorded calls.
        declared: Names of the symbols that the user gave.

    Returns:
        One line for each symbol, and one for each pair of symbols that had the same value in every call.
    """
    symbols: dict[str, Symbol] = {}
    for spec in specs:
        symbols.update({axis.symbol.name: axis.symbol for axis in spec.axes if axis.symbol is not None})
    return (
        *(_symbol_line(symbol, specs, observations, declared) for symbol in symbols.values()),
        *_equal(specs, observations),
    )


def _symbol_line(
    symbol: Symbol, specs: Sequence[TensorSpec], observations: Sequence[Observation], declared: Sequence[str]
) -> str:
    carriers = [
        (position, number)
        for position, spec in enumerate(specs)
        for number, axis in enumerate(spec.axes)
        if axis.symbol is not None and axis.symbol.name == symbol.name
    ]
    where = ", ".join(
        f"axis {number} of {format_locator(specs[position].locator)}"
        + (f" (times {specs[position].axes[number].size})" if specs[position].axes[number].size != 1 else "")
        for position, number in carriers
    )
    position, number = carriers[0]
    return (
        f"{symbol.name} = {symbol.min}..{symbol.max}: {where}; {_why(symbol, position, number, observations, declared)}"
    )


def _why(symbol: Symbol, position: int, axis: int, observations: Sequence[Observation], declared: Sequence[str]) -> str:
    seen: dict[int, int | None] = {}
    for observation in observations:
        seen.setdefault(observation.input_shapes[position][axis], observation.batch_size)
    examples = ", ".join(
        f"{size}" if batch is None else f"{size} at batch size {batch}"
        for size, batch in [*seen.items()][:_MOST_EXAMPLES]
    )
    more = f" and {len(seen) - _MOST_EXAMPLES} more sizes" if len(seen) > _MOST_EXAMPLES else ""
    if symbol.name in declared:
        return f"declared in dynamic_shapes, seen {examples}{more}"
    if symbol.is_batch:
        return f"grows with the batch size: {examples}{more}"
    return f"varies: {examples}{more}"


def _equal(specs: Sequence[TensorSpec], observations: Sequence[Observation]) -> Iterator[str]:
    axes = [spec.axes for spec in specs]
    values = [symbol_values(observation.input_shapes, axes) for observation in observations]
    names = list(dict.fromkeys(name for value in values for name in value))
    for one, other in combinations(names, 2):
        if all(value.get(one) == value.get(other) for value in values):
            yield (
                f"{one} and {other} were equal in every call: they are one only for a backend whose export demands it; "
                f"give their axes one name in dynamic_shapes if they always are"
            )
