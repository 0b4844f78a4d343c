"""One graph of a module: what its calls and outputs look like, which axes vary and how far."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from aitune.torch.dynamic_shapes import DynamicShapes
from aitune.torch.module.axis_inference import symbol_values
from aitune.torch.module.forward_signature import ForwardSignature
from aitune.torch.module.sample import Sample
from aitune.torch.module.sample_metadata import SampleMetadata
from aitune.torch.module.tensor_spec import Axis, Symbol, TensorSpec


class GraphSpec:
    """Everything a backend has to know about the calls of one graph.

    Args:
        name: Name of the graph, unique within its module.
        input_spec: Metadata of the named arguments, with axes.
        output_spec: Metadata of the output, with axes.
        forward_signature: How the forward is called.
        dynamic_shapes: What the user said about axes.
        axis_evidence: Which recorded calls made which axes vary, in words for a report.
        changed_arguments: Arguments into which the forward puts other values; the output then holds them, too.

    Attributes:
        kept_on_original: Why nothing but the original module may run the graph, if so.
    """

    def __init__(
        self,
        name: str,
        input_spec: SampleMetadata,
        output_spec: SampleMetadata,
        forward_signature: ForwardSignature,
        dynamic_shapes: DynamicShapes | None = None,
        axis_evidence: Sequence[str] = (),
        changed_arguments: Sequence[str] = (),
    ) -> None:
        self.name = name
        self.input_spec = input_spec
        self.output_spec = output_spec
        self.forward_signature = forward_signature
        self.dynamic_shapes: DynamicShapes = dict(dynamic_shapes or {})
        self.axis_evidence = tuple(axis_evidence)
        self.changed_arguments = tuple(changed_arguments)
        self.kept_on_original: str | None = None

    @property
    def symbols(self) -> dict[str, Symbol]:
        """Symbols of the inputs by name, in the order in which they appear."""
        return _symbols(self.input_spec.tensor_specs)

    @property
    def batch_symbol(self) -> Symbol | None:
        """The symbol that counts the samples of a batch, if there is one."""
        return next((symbol for symbol in self.symbols.values() if symbol.is_batch), None)

    @property
    def batching(self) -> bool:
        """Whether the graph can be called with different batch sizes."""
        return self.batch_symbol is not None

    def get_min_batch_size(self) -> int:
        """Return the smallest batch size, 1 for a graph without a batch axis."""
        return self.batch_symbol.min if self.batch_symbol else 1

    def get_max_batch_size(self) -> int:
        """Return the largest batch size, 1 for a graph without a batch axis."""
        return self.batch_symbol.max if self.batch_symbol else 1

    def update_max_batch_size(self, sample: Sample, max_batch_size: int) -> None:
        """Set the largest batch size, in inputs and outputs alike.

        Args:
            sample: A call of this graph; checked to be one.
            max_batch_size: New largest batch size, at least the smallest one.
        """
        self.symbol_sizes(sample)
        symbol = self.batch_symbol
        if symbol is not None:
            widened = replace(symbol, max=max(max_batch_size, symbol.min))
            self.input_spec = _replace_symbol(self.input_spec, widened)
            self.output_spec = _replace_symbol(self.output_spec, widened)

    def symbol_sizes(self, sample: Sample) -> dict[str, int]:
        """Read the values of the symbols from a call.

        Args:
            sample: A call of this graph.
        """
        shapes = [tensor.shape for tensor in self.input_tensors(*sample)]
        return symbol_values(shapes, [spec.axes for spec in self.input_spec.tensor_specs])

    def batch_size_of(self, sample: Sample) -> int:
        """Return the batch size of a call, 1 for a graph without a batch axis."""
        return self.symbol_sizes(sample)[self.batch_symbol.name] if self.batch_symbol else 1

    def input_tensors(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[torch.Tensor]:
        """Return the tensors of a call in the order of the input spec."""
        return self.input_spec.tensors_of(self.forward_signature.bind(tuple(args), kwargs))

    def make_call(self, tensors: Sequence[torch.Tensor]) -> Sample:
        """Make a call from its tensors; everything else is as it was recorded.

        Args:
            tensors: One for each tensor of the input spec, in order.
        """
        return self.forward_signature.to_call(self.input_spec.rebuild(tensors))

    def make_output(self, tensors: Sequence[torch.Tensor]) -> Any:
        """Make an output, of the type that the forward returns, from its tensors in order."""
        return self.output_spec.rebuild(tensors)

    def resize(self, sample: Sample, sizes: Mapping[str, int]) -> Sample:
        """Return the call with other values of its symbols; rows are repeated in turn or cut off.

        Args:
            sample: A call of this graph.
            sizes: Values by symbol name; symbols left out keep theirs.
        """
        wanted = {**self.symbol_sizes(sample), **sizes}
        tensors = [
            _resize_tensor(tensor, [axis.at(wanted) for axis in spec.axes])
            for tensor, spec in zip(self.input_tensors(*sample), self.input_spec.tensor_specs, strict=True)
        ]
        return self.make_call(tensors)

    def make_batch(self, args: Sequence[Any], kwargs: Mapping[str, Any], batch_size: int) -> Sample:
        """Return the call with another batch size; rows are repeated in turn or cut off.

        Args:
            args: Positional arguments of a call of this graph.
            kwargs: Keyword arguments of the call.
            batch_size: Number of samples wanted.
        """
        sample = Sample(tuple(args), dict(kwargs))
        return self.resize(sample, {self.batch_symbol.name: batch_size} if self.batch_symbol else {})

    def describe(self) -> str:
        """Name the inputs and outputs with their axes, and the range of each symbol, for people."""
        ranges = ", ".join(f"{symbol.name} {symbol.min}..{symbol.max}" for symbol in self.symbols.values())
        text = f"{self.input_spec.describe()} -> {self.output_spec.describe()}"
        return f"{text} ({ranges})" if ranges else text

    def __repr__(self) -> str:
        return f"GraphSpec({self.name!r}: {self.describe()})"


def _symbols(specs: Sequence[TensorSpec]) -> dict[str, Symbol]:
    return {axis.symbol.name: axis.symbol for spec in specs for axis in spec.axes if axis.symbol is not None}


def _replace_symbol(metadata: SampleMetadata, symbol: Symbol) -> SampleMetadata:
    def replaced(axis: Axis) -> Axis:
        return replace(axis, symbol=symbol) if axis.symbol is not None and axis.symbol.name == symbol.name else axis

    return metadata.with_axes([tuple(replaced(axis) for axis in spec.axes) for spec in metadata.tensor_specs])


def _resize_tensor(tensor: torch.Tensor, shape: Sequence[int]) -> torch.Tensor:
    for axis, size in enumerate(shape):
        current = tensor.shape[axis]
        if size != current and current == 0:
            # There is nothing to repeat, as in a cache that is still empty.
            tensor = tensor.new_zeros([*tensor.shape[:axis], size, *tensor.shape[axis + 1 :]])
        elif size != current:
            index = torch.arange(size, device=tensor.device) % current
            tensor = tensor.index_select(axis, index)
    return tensor
