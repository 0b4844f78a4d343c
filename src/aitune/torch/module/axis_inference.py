"""Which axes are fixed, which count a batch, which vary: read from the shapes of recorded calls.

The rule: an axis whose size is always the same is fixed; one whose size divided by the batch size is the same whole
number over at least two batch sizes is a batch axis with that factor; any other axis is dynamic between the sizes seen.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from aitune.exceptions import AITuneUserInputError
from aitune.torch.dynamic_shapes import BatchDim, DynamicDim, DynamicShapes, InputPath
from aitune.torch.module.locator import Locator, format_locator
from aitune.torch.module.tensor_spec import Axis, Symbol, TensorSpec


@dataclass(frozen=True)
class Observation:
    """Shapes of one recorded call.

    Args:
        batch_size: Samples in the call, or ``None`` when nobody said.
        input_shapes: Shape of each input tensor.
        output_shapes: Shape of each output tensor.
    """

    batch_size: int | None
    input_shapes: tuple[tuple[int, ...], ...]
    output_shapes: tuple[tuple[int, ...], ...]


def infer_input_axes(
    specs: Sequence[TensorSpec],
    observations: Sequence[Observation],
    dynamic_shapes: DynamicShapes,
    caches: Sequence[int | None] = (),
) -> list[tuple[Axis, ...]]:
    """Find the axes of every input tensor.

    Args:
        specs: The input tensors.
        observations: At least one recorded call.
        dynamic_shapes: What the user said; it overrides what the shapes show.
        caches: For each tensor the key-value cache that it is part of, if any: what grows in one grows together, so
            axes of one cache that were equal in every call are one size.

    Returns:
        The axes of each tensor.

    Raises:
        AITuneUserInputError: ``dynamic_shapes`` names an input that does not exist, has the wrong rank, defines one
            name in two ways, or does not hold a size that was recorded.
    """
    declared = _declared_axes(specs, observations, dynamic_shapes)
    batch_sizes = [observation.batch_size for observation in observations]
    batch = _declared_batch(declared, observations)
    names = _FreshNames("dim", {a.symbol.name for axes in declared.values() for a in axes if a.symbol is not None})
    inferred: list[tuple[Axis, ...]] = []
    in_caches: dict[tuple[int, tuple[int, ...]], Axis] = {}
    for position, spec in enumerate(specs):
        cache = caches[position] if caches else None
        if position in declared:
            inferred.append(declared[position])
            continue
        axes = []
        for axis in range(spec.rank):
            sizes = [observation.input_shapes[position][axis] for observation in observations]
            known = None if cache is None else in_caches.get((cache, tuple(sizes)))
            axes.append(known or _infer_axis(sizes, batch_sizes, names, batch))
            if cache is not None:
                in_caches[cache, tuple(sizes)] = axes[-1]
        inferred.append(tuple(axes))
    return inferred


def infer_output_axes(
    specs: Sequence[TensorSpec], observations: Sequence[Observation], input_axes: Sequence[tuple[Axis, ...]]
) -> list[tuple[Axis, ...]]:
    """Find the axes of every output tensor, naming input symbols where an output follows one in every call.

    Args:
        specs: The output tensors.
        observations: At least one recorded call.
        input_axes: The axes of the inputs.
    """
    values = [symbol_values(observation.input_shapes, input_axes) for observation in observations]
    batch_sizes = [observation.batch_size for observation in observations]
    known = {a.symbol.name: a.symbol for axes in input_axes for a in axes if a.symbol is not None}
    names = _FreshNames("out", known)
    inferred = []
    for position, spec in enumerate(specs):
        axes = []
        for axis in range(spec.rank):
            sizes = [observation.output_shapes[position][axis] for observation in observations]
            followed = _followed_symbol(sizes, values, known)
            axes.append(followed if followed is not None else _infer_axis(sizes, batch_sizes, names))
        inferred.append(tuple(axes))
    return inferred


def symbol_values(shapes: Sequence[Sequence[int]], axes_of_tensors: Sequence[tuple[Axis, ...]]) -> dict[str, int]:
    """Read the values of the symbols from the shapes of one call.

    Args:
        shapes: Shape of each tensor.
        axes_of_tensors: Axes of each tensor.
    """
    values: dict[str, int] = {}
    for shape, axes in zip(shapes, axes_of_tensors, strict=True):
        for size, axis in zip(shape, axes, strict=True):
            if axis.symbol is not None:
                values.setdefault(axis.symbol.name, size // axis.size)
    return values


class _FreshNames:
    """Names for symbols that are found, apart from those that there are: two symbols of one name would be one size.

    Args:
        prefix: What the names of symbols that count no batch begin with.
        taken: Names of the symbols that there are.
    """

    def __init__(self, prefix: str, taken: Collection[str]) -> None:
        self.batch = next(_unused_names("batch", taken))
        self._others = _unused_names(prefix, taken)

    def next(self) -> str:
        return next(self._others)


def _unused_names(prefix: str, taken: Collection[str]) -> Iterator[str]:
    return (name for number in itertools.count() if (name := f"{prefix}{number}") not in taken)


def _declared_batch(declared: Mapping[int, tuple[Axis, ...]], observations: Sequence[Observation]) -> Symbol | None:
    """Return the symbol that the user gave an axis which held one row for each sample in every call."""
    for position, axes in declared.items():
        for number, axis in enumerate(axes):
            if axis.symbol is not None and axis.symbol.is_batch:
                sizes = [observation.input_shapes[position][number] for observation in observations]
                if sizes == [observation.batch_size for observation in observations]:
                    return axis.symbol
    return None


def _infer_axis(
    sizes: Sequence[int], batch_sizes: Sequence[int | None], names: _FreshNames, batch: Symbol | None = None
) -> Axis:
    if len(set(sizes)) == 1:
        return Axis(sizes[0])
    known = [size for size in batch_sizes if size]
    factor = _common_factor(sizes, batch_sizes)
    if len(known) == len(sizes) and len(set(known)) > 1 and factor is not None:
        return Axis(factor, batch or Symbol(names.batch, min(known), max(known), is_batch=True))
    return Axis(1, Symbol(names.next(), min(sizes), max(sizes)))


def _followed_symbol(
    sizes: Sequence[int], values: Sequence[Mapping[str, int]], known: Mapping[str, Symbol]
) -> Axis | None:
    if len(set(sizes)) == 1:
        return None
    for name, symbol in known.items():
        factor = _common_factor(sizes, [value.get(name) for value in values])
        if factor is not None:
            return Axis(factor, symbol)
    return None


def _common_factor(sizes: Sequence[int], values: Sequence[int | None]) -> int | None:
    """Return the whole number that times its value every size is; ``None`` when there is none."""
    # Nothing is any number of times nothing.
    pairs = [pair for pair in zip(sizes, values, strict=True) if pair != (0, 0)]
    factors = {size // value if value and size % value == 0 else 0 for size, value in pairs}
    return factors.pop() if len(factors) == 1 and 0 not in factors else None


def _declared_axes(
    specs: Sequence[TensorSpec], observations: Sequence[Observation], dynamic_shapes: DynamicShapes
) -> dict[int, tuple[Axis, ...]]:
    by_locator = {spec.locator: position for position, spec in enumerate(specs)}
    dims_by_name: dict[str, DynamicDim] = {}
    declared: dict[int, tuple[Axis, ...]] = {}
    for path, dims in dynamic_shapes.items():
        position = by_locator.get(_locator(path))
        if position is None:
            known = ", ".join(format_locator(spec.locator) for spec in specs)
            raise AITuneUserInputError(f"dynamic_shapes: no input tensor at {path!r}; input tensors are {known}")
        if not isinstance(dims, tuple | list):
            raise AITuneUserInputError(
                f"dynamic_shapes: {path!r} must list one entry for each axis, such as (BatchDim('batch', 1, 8), 3), "
                f"got {dims!r}"
            )
        if len(dims) != specs[position].rank:
            raise AITuneUserInputError(
                f"dynamic_shapes: {path!r} lists {len(dims)} axes, the recorded tensor has {specs[position].rank}"
            )
        for dim in dims:
            if isinstance(dim, DynamicDim) and dims_by_name.setdefault(dim.name, dim) != dim:
                raise AITuneUserInputError(
                    f"dynamic_shapes: {dim.name!r} is defined as {dims_by_name[dim.name]} and as {dim}; "
                    f"axes that share a name must be defined alike"
                )
        seen = [observation.input_shapes[position] for observation in observations]
        declared[position] = tuple(_declared_axis(path, axis, dim, seen) for axis, dim in enumerate(dims))
    _require_shared_sizes(specs, observations, declared)
    return declared


def _require_shared_sizes(
    specs: Sequence[TensorSpec], observations: Sequence[Observation], declared: Mapping[int, tuple[Axis, ...]]
) -> None:
    for observation in observations:
        seen: dict[str, tuple[str, int, int]] = {}
        for position, axes in declared.items():
            for number, axis in enumerate(axes):
                if axis.symbol is None:
                    continue
                here = (format_locator(specs[position].locator), number, observation.input_shapes[position][number])
                there = seen.setdefault(axis.symbol.name, here)
                if there[2] != here[2]:
                    raise AITuneUserInputError(
                        f"dynamic_shapes: axes that share the name {axis.symbol.name!r} had different sizes in one "
                        f"call: axis {there[1]} of {there[0]} was {there[2]}, axis {here[1]} of {here[0]} was "
                        f"{here[2]}; give them different names"
                    )


def _locator(path: InputPath) -> Locator:
    if isinstance(path, str | tuple):
        return (path,) if isinstance(path, str) else path
    raise AITuneUserInputError(
        f"dynamic_shapes: a path must be a parameter name or a tuple such as ('options', 'mask'), got {path!r}"
    )


def _declared_axis(path: InputPath, axis: int, dim: DynamicDim | int, seen: Sequence[tuple[int, ...]]) -> Axis:
    if isinstance(dim, DynamicDim):
        low, high = dim.min, dim.max
    elif isinstance(dim, int) and not isinstance(dim, bool) and dim > 0:
        low = high = dim
    else:
        raise AITuneUserInputError(
            f"dynamic_shapes: axis {axis} of {path!r} must be a BatchDim, a DynamicDim or a positive integer, "
            f"got {dim!r}"
        )
    for shape in seen:
        if not low <= shape[axis] <= high:
            raise AITuneUserInputError(
                f"dynamic_shapes: axis {axis} of {path!r} was recorded with size {shape[axis]}, outside {low}..{high}; "
                f"widen the bounds or leave that input out of the dataset"
            )
    if isinstance(dim, DynamicDim):
        return Axis(1, Symbol(dim.name, dim.min, dim.max, dim.opt, isinstance(dim, BatchDim)))
    return Axis(dim)
