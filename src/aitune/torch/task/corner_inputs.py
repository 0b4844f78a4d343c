"""The calls that a candidate is compared on: what was recorded, and made-up ones at the corners of the range."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch

from aitune.exceptions import AITuneUserInputError
from aitune.torch.module.graph_spec import GraphSpec
from aitune.torch.module.sample import Sample
from aitune.torch.module.tensor_digests import bytes_in_line
from aitune.torch.module.tensor_spec import TensorSpec
from aitune.torch.task.call_sizes import corner_sizes, interior_sizes
from aitune.torch.task.comparison import batch_axis_of
from aitune.torch.task.input_factory import InputFactory, factory_call
from aitune.torch.task.value_rules import ValueRule

DEFAULT_MAX_CORNERS = 24
DEFAULT_NUM_INTERIOR = 2

# How often a row that equals another one is changed before it is kept as it is.
_MAX_VARIATIONS = 8


@dataclass(frozen=True)
class LabelledCall:
    """One call to compare.

    Args:
        where: Name for people: ``"sample 3"``, ``"corner batch0=1, dim0=7"``, ``"inside batch0=3, dim0=5"``.
        call: The call, in canonical form.
        is_recorded: Whether the user's data made it.
        is_valid: Whether the user vouches for it, by the data or by a factory; a made-up call may turn out to be none
            that the module takes.
    """

    where: str
    call: Sample
    is_recorded: bool
    is_valid: bool


def labelled_calls(
    graph_spec: GraphSpec,
    data: Sequence[Sample],
    *,
    seed: int = 0,
    max_corners: int = DEFAULT_MAX_CORNERS,
    num_interior: int = DEFAULT_NUM_INTERIOR,
    input_factory: InputFactory | None = None,
) -> tuple[LabelledCall, ...]:
    """List the calls that a candidate is compared on.

    First all recorded samples, then the first sample with other values (so that no two calls in a row agree, which
    would hide stale answers), the corners, points inside the range, and a sample that is laid out in memory in another
    order. The rows of a made call differ from one another: they are drawn from different samples first, and varied
    validly when there are not enough of them; one more call has equal rows.

    Args:
        graph_spec: The graph.
        data: Recorded calls of the graph, at least one.
        seed: Seed of everything random; equal arguments give equal calls.
        max_corners: Most corners; with more the last ones of :func:`corner_sizes` are left out.
        num_interior: Most points inside the range.
        input_factory: Makes the calls of wanted sizes, instead of making them up from the samples.

    Raises:
        AITuneUserInputError: There is no recorded call, or the factory made none that fits.
    """
    if not data:
        raise AITuneUserInputError(f"graph {graph_spec.name!r} has no recorded call to compare on; record at least one")
    maker = _CallMaker(graph_spec, data, seed)
    recorded = [
        LabelledCall(f"sample {number}", graph_spec.make_call(tensors), True, True)
        for number, tensors in enumerate(maker.samples)
    ]
    other = maker.other_values()
    if other is not None:
        recorded.insert(1, LabelledCall("sample 0 with other values", graph_spec.make_call(other), False, False))
    seen = maker.sizes_of_samples
    told_apart = [s for s, tensors in zip(seen, maker.samples, strict=True) if maker.has_distinct_rows(tensors)]
    corners = [sizes for sizes in corner_sizes(graph_spec.symbols, seen) if sizes not in told_apart][:max_corners]
    inside = interior_sizes(graph_spec.symbols, seen, corners, num_interior, seed)
    made = []
    wanted = [*(("corner", sizes) for sizes in corners), *(("inside", sizes) for sizes in inside)]
    for number, (kind, sizes) in enumerate(wanted, start=1):
        if input_factory is None:
            call = graph_spec.make_call(maker.make(sizes, number))
        else:
            call = factory_call(input_factory, graph_spec, sizes)
        made.append(LabelledCall(_label(kind, sizes), call, False, input_factory is not None))
    return (*recorded, *made, *maker.equal_rows(graph_spec), *_laid_out_otherwise(graph_spec, maker.samples))


def _laid_out_otherwise(graph_spec: GraphSpec, samples: Sequence[Sequence[torch.Tensor]]) -> list[LabelledCall]:
    """Return the first sample in which two axes can be exchanged in memory: a backend may read it as if contiguous."""
    for number, tensors in enumerate(samples):
        exchanged = [_exchange_strides(tensor) for tensor in tensors]
        if any(new is not old for new, old in zip(exchanged, tensors, strict=True)):
            own = [tensor.clone() for tensor in exchanged]
            return [LabelledCall(f"sample {number}, not contiguous", graph_spec.make_call(own), False, False)]
    return []


def _exchange_strides(tensor: torch.Tensor) -> torch.Tensor:
    axes = [axis for axis in range(tensor.dim()) if tensor.shape[axis] > 1]
    if len(axes) < 2:
        return tensor
    return tensor.transpose(*axes[-2:]).contiguous().transpose(*axes[-2:])


def _label(kind: str, sizes: Mapping[str, int]) -> str:
    return f"{kind} " + ", ".join(f"{name}={size}" for name, size in sizes.items())


class _CallMaker:
    """Makes input tensors of wanted sizes out of the recorded ones."""

    def __init__(self, graph_spec: GraphSpec, data: Sequence[Sample], seed: int) -> None:
        self.specs = graph_spec.input_spec.tensor_specs
        self.samples = [graph_spec.input_tensors(*sample) for sample in data]
        self.sizes_of_samples = [graph_spec.symbol_sizes(sample) for sample in data]
        self._batch_name = graph_spec.batch_symbol.name if graph_spec.batch_symbol else None
        self._seed = seed
        self._rules = [
            ValueRule.from_tensors([tensors[position] for tensors in self.samples], spec)
            for position, spec in enumerate(self.specs)
        ]

    def make(self, sizes: Mapping[str, int], number: int) -> list[torch.Tensor]:
        """Make the tensors of one call; ``number`` sets which rows come first and the noise."""
        generator = torch.Generator().manual_seed(self._seed * 1_000_003 + number)
        sources = list(self._sources())
        # A batch of none is cut from a batch of one.
        num_rows = max(sizes[self._batch_name], 1) if self._batch_name else 1
        rows: list[list[torch.Tensor]] = []
        seen: set[int] = set()
        for position in range(num_rows):
            sample, row = sources[(position + number) % len(sources)]
            bundle = self._row(sample, row, sizes)
            # Each reuse of a source shifts by another amount.
            shift = 1 + position // len(sources)
            for _ in range(_MAX_VARIATIONS):
                if _fingerprint(bundle) not in seen:
                    break
                bundle = self._vary(bundle, shift, generator)
            seen.add(_fingerprint(bundle))
            rows.append(bundle)
        return self._join(rows, sizes)

    def other_values(self) -> list[torch.Tensor] | None:
        """Return the first sample with other values; ``None`` when no valid other values are known."""
        generator = torch.Generator().manual_seed(self._seed)
        sizes = self.sizes_of_samples[0]
        num_rows = sizes[self._batch_name] if self._batch_name else 1
        rows = [self._vary(self._row(0, row, sizes), 1 + row, generator) for row in range(num_rows)]
        made = self._join(rows, sizes) if rows else []
        return made if made and _fingerprint(made) != _fingerprint(self.samples[0]) else None

    def equal_rows(self, graph_spec: GraphSpec) -> list[LabelledCall]:
        """Return the first sample of several rows with its first row in all of them, where they were not equal."""
        for number, sizes in enumerate(self.sizes_of_samples):
            num_rows = sizes[self._batch_name] if self._batch_name else 1
            if num_rows > 1 and self.has_distinct_rows(self.samples[number]):
                call = graph_spec.make_call(self._join([self._row(number, 0, sizes)] * num_rows, sizes))
                return [LabelledCall(f"sample {number} with equal rows", call, False, False)]
        return []

    def has_distinct_rows(self, tensors: Sequence[torch.Tensor]) -> bool:
        """Whether no two rows of a recorded batch are equal, so that a swapped row would be seen."""
        sliced = [(t, axis) for t, spec in zip(tensors, self.specs, strict=True) if (axis := batch_axis_of(spec.axes))]
        if not sliced:
            return True
        num_rows = sliced[0][0].shape[sliced[0][1][0]] // sliced[0][1][1]
        prints = {
            _fingerprint([tensor.narrow(axis, row * factor, factor) for tensor, (axis, factor) in sliced])
            for row in range(num_rows)
        }
        return len(prints) == num_rows

    def _sources(self) -> Iterator[tuple[int, int]]:
        """Yield sample and row of every recorded row: first row 0 of each sample, then row 1, and so on."""
        counts = [sizes[self._batch_name] if self._batch_name else 1 for sizes in self.sizes_of_samples]
        for row in range(max(counts, default=0)):
            for sample, count in enumerate(counts):
                if row < count:
                    yield sample, row

    def _row(self, sample: int, row: int, sizes: Mapping[str, int]) -> list[torch.Tensor]:
        """Cut one row out of a sample and bring its other axes to the wanted sizes."""
        wanted = dict(sizes)
        if self._batch_name:
            wanted[self._batch_name] = 1
        bundle = []
        for tensor, spec, rule in zip(self.samples[sample], self.specs, self._rules, strict=True):
            batch = batch_axis_of(spec.axes)
            cut = tensor if batch is None else tensor.narrow(batch[0], row * batch[1], batch[1])
            bundle.append(rule.tidy(_resize(cut, [axis.at(wanted) for axis in spec.axes])))
        return bundle

    def _vary(self, bundle: Sequence[torch.Tensor], shift: int, generator: torch.Generator) -> list[torch.Tensor]:
        return [
            rule.vary(tensor, shift, _shift_axis(tensor, spec), generator)
            for tensor, spec, rule in zip(bundle, self.specs, self._rules, strict=True)
        ]

    def _join(self, rows: Sequence[Sequence[torch.Tensor]], sizes: Mapping[str, int]) -> list[torch.Tensor]:
        joined = []
        for position, spec in enumerate(self.specs):
            batch = batch_axis_of(spec.axes)
            tensor = rows[0][position] if batch is None else torch.cat([row[position] for row in rows], dim=batch[0])
            joined.append(_resize(tensor, [axis.at(sizes) for axis in spec.axes]).clone())
        return joined


def _shift_axis(tensor: torch.Tensor, spec: TensorSpec) -> int | None:
    """Return the axis to move values along: one whose size varies (ids and their mask move together), else the last."""
    batch = batch_axis_of(spec.axes)
    axes = [axis for axis in range(tensor.dim()) if tensor.shape[axis] > 1 and (batch is None or axis != batch[0])]
    varying = [axis for axis in axes if spec.axes[axis].symbol is not None]
    candidates = varying or axes
    return candidates[-1] if candidates else None


def _resize(tensor: torch.Tensor, shape: Sequence[int]) -> torch.Tensor:
    """Cut or repeat in turn along every axis."""
    if tensor.numel() == 0 and all(shape):
        return tensor.new_zeros(tuple(shape))
    for axis, size in enumerate(shape):
        if size != tensor.shape[axis]:
            index = torch.arange(size, device=tensor.device) % max(tensor.shape[axis], 1)
            tensor = tensor.index_select(axis, index)
    return tensor


def _fingerprint(tensors: Sequence[torch.Tensor]) -> int:
    """Hash values and shapes; equal tensors of one dtype have equal fingerprints."""
    return hash(tuple((tuple(tensor.shape), bytes_in_line(tensor).numpy().tobytes()) for tensor in tensors))
