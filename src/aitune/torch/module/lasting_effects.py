"""Finds what a forward leaves behind in attributes: a counter, a log, the last attention map. No backend would."""

from __future__ import annotations

import types
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from aitune.torch.module.changed_arguments import ReturningArguments
from aitune.torch.module.graph_spec import GraphSpec
from aitune.torch.module.interception import Placed
from aitune.torch.module.module_parts import joined, named_parts, plain_values
from aitune.torch.module.preserved_state import preserved_state
from aitune.torch.module.sample import Sample
from aitune.torch.module.sample_metadata import CONSTANT_TYPES, Constant
from aitune.torch.module.tensor_digests import digest_of

_OPAQUE = (
    torch.nn.Module,
    Placed,
    type,
    types.ModuleType,
    types.FunctionType,
    types.MethodType,
    types.BuiltinFunctionType,
)
_MOST_LEVELS = 2


def find_lasting_effect(module: torch.nn.Module, graph_spec: GraphSpec, samples: Sequence[Sample]) -> str | None:
    """Run a module twice, and say in words which attribute the second call left with another value.

    The first call fills what is made once, such as a table of positions; the second has the same sizes and other values
    where they can be changed and stay valid. Buffers do not count: they are compared when a candidate is checked. The
    module's state is put back as far as :func:`preserved_state` reaches.

    Args:
        module: The original module, or the function that is tuned in its place.
        graph_spec: The graph.
        samples: Recorded calls of the graph.

    Returns:
        ``None`` when there is none, or when the module cannot be run.
    """
    if not samples:
        return None
    sample = max(samples, key=graph_spec.batch_size_of)
    original = module.module if isinstance(module, ReturningArguments) else module
    with preserved_state(module), torch.no_grad():
        try:
            _run(module, graph_spec, graph_spec.input_tensors(*sample))
            before = _attributes(original)
            _run_with_other_values(module, graph_spec, sample)
        except Exception:
            # The references are made from the same calls, and say what is wrong with them.
            return None
        after = _attributes(original)
    name = next((name for name in (*before, *after) if before.get(name) != after.get(name)), None)
    if name is None:
        return None
    return (
        f"the forward leaves another value in the attribute {name} at every call, and a backend would leave it as it "
        f"is; a graph of a forward that keeps it in a local variable or returns it can be tuned"
    )


def _run_with_other_values(module: torch.nn.Module, graph_spec: GraphSpec, sample: Sample) -> None:
    tensors = graph_spec.input_tensors(*sample)
    specs = graph_spec.input_spec.tensor_specs
    try:
        other = [_other_values(tensor, spec.axes) for tensor, spec in zip(tensors, specs, strict=True)]
        _run(module, graph_spec, other)
    except Exception:
        # A module may refuse what was made up, and torch the arithmetic of a dtype; a counter shows with the same
        # values too.
        _run(module, graph_spec, tensors)


def _run(module: torch.nn.Module, graph_spec: GraphSpec, tensors: Sequence[torch.Tensor]) -> None:
    # Copies: a forward may change its inputs, and the recorded calls are needed as they are.
    args, kwargs = graph_spec.make_call([tensor.detach().clone() for tensor in tensors])
    module(*args, **kwargs)


def _other_values(tensor: torch.Tensor, axes: Sequence[Any]) -> torch.Tensor:
    """Half of every number, and the samples of a batch in another order: indices stay what a module can look up."""
    batch = [number for number, axis in enumerate(axes) if axis.symbol is not None and axis.symbol.is_batch]
    turned = tensor.flip(batch) if batch else tensor
    return turned * 0.5 if turned.is_floating_point() or turned.is_complex() else turned


def _attributes(module: torch.nn.Module) -> dict[str, Any]:
    found: dict[str, Any] = {}
    seen: set[int] = set()
    for path, part in named_parts(module):
        for key, value in plain_values(part):
            found.update(_values(joined(path, key), value, _MOST_LEVELS, seen))
    return found


def _values(name: str, value: Any, levels: int, seen: set[int]) -> Iterator[tuple[str, Any]]:
    """Yield what can be compared: constants and tensors by value, everything else by identity and by its attributes."""
    if isinstance(value, torch.Tensor):
        yield name, (tuple(value.shape), value.dtype, digest_of(value))
    elif isinstance(value, CONSTANT_TYPES):
        yield name, Constant((), value).key
    else:
        # The object itself, so that it lives: another one could get its identity.
        yield name, _Same(value)
        if levels and hasattr(value, "__dict__") and not isinstance(value, _OPAQUE) and id(value) not in seen:
            seen.add(id(value))
            for key, inner in list(vars(value).items()):
                yield from _values(f"{name}.{key}", inner, levels - 1, seen)


class _Same:
    def __init__(self, value: Any) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and self.value is other.value

    __hash__ = None  # type: ignore[assignment]
