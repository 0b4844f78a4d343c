"""The calls that a candidate is compared on: what was recorded, and made-up ones at the corners of the range."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch

from aitune.exceptions import AITuneUserInputError
from aitune.torch.module.graph_spec import GraphSpec
from aitune.torch.module.sample import Sample
from aitune.torch.module.tensor_spec import Symbol, TensorSpec
from aitune.torch.task.comparison import batch_axis_of
from aitune.torch.task.value_rules import ValueRule

DEFAULT_MAX_CORNERS = 24

# How often a row that equals another one is changed before it is kept as it is.
_MAX_VARIATIONS = 8


@dataclass(frozen=True)
class LabelledCall:
    """One call to compare.

    Args:
        where: Name for people: ``"sample 3"``, ``"corner batch0=1, dim0=7"``.
        call: The call, in canonical form.
        is_recorded: Whether the user's data made it; a made-up call may turn out to be none that the module takes.
    """

    where: str
    call: Sample
    is_recorded: bool


def labelled_calls(
    graph_spec: GraphSpec, data: Sequence[Sample], *, seed: int = 0, max_corners: int = DEFAULT_MAX_CORNERS
) -> tuple[LabelledCall, ...]:
    """List the calls that a candidate is compared on.

    First all recorded samples, then the first sample with other values (so that no two calls in a row agree, which
    would hide stale answers), then the corners. The rows of a made call differ from one another: they are drawn from
    different samples first, and varied validly when there are not enough of them.

    Args:
        graph_spec: The graph.
        data: Recorded calls of the graph, at least one.
        seed: Seed of everything random; equal arguments give equal calls.
        max_corners: Most corners; with more the last ones of :func:`corner_sizes` are left out.

    Raises:
        AITuneUserInputError: There is no recorded call.
    """
    if not data:
        raise AITuneUserInputError(f"graph {graph_spec.name!r} has no recorded call to compare on; record at least one")
    maker = _CallMaker(graph_spec, data, seed)
    recorded = [
        LabelledCall(f"sample {number}", graph_spec.make_call(tensors), True)
        for number, tensors in enumerate(maker.samples)
    ]
    other = maker.other_values()
    if other is not None:
        recorded.insert(1, LabelledCall("sample 0 with other values", graph_spec.make_call(other), False))
    seen = maker.sizes_of_samples
    told_apart = [s for s, tensors in zip(seen, maker.samples, strict=True) if maker.has_distinct_rows(tensors)]
    corners = [sizes for sizes in corner_sizes(graph_spec.symbols, seen) if sizes not in told_apart][:max_corners]
    made = [
        LabelledCall(_label(sizes), graph_spec.make_call(maker.make(sizes, number)), False)
        for number, sizes in enumerate(corners, start=1)
    ]
    return (*recorded, *made)


def corner_sizes(symbols: Mapping[str, Symbol], recorded: Sequence[Mapping[str, int]]) -> list[dict[str, int]]:
    """List combinations of sizes worth trying, the most telling first, each once.

    Batch 1 where it is inside; everything smallest; everything largest; each symbol at its largest and smallest with
    the others as recorded; each symbol at a size inside its range that was never recorded, odd where possible; each at
    its ``opt``. Symbols that agreed in every recorded call (ids and their mask) go together in all of these; at the end
    they are tried apart, once. Their number grows with the number of symbols, not with its power.

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
    for group in groups:
        opt = symbols[group[0]].opt
        if opt is not None:
            add(dict.fromkeys(group, opt))
    for first, *others in groups:
        if others:
            add({first: symbols[first].min, **dict.fromkeys(others, symbols[first].max)})
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


def _label(sizes: Mapping[str, int]) -> str:
    return "corner " + ", ".join(f"{name}={size}" for name, size in sizes.items())


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
    parts = []
    for tensor in tensors:
        flat = tensor.detach().cpu().resolve_conj().contiguous().reshape(-1)
        parts.append((tuple(tensor.shape), flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b""))
    return hash(tuple(parts))
