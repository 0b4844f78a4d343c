"""The weights of a module that somebody else works with: seen when they change, put back where they still exist."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from aitune.torch.module.module_parts import joined, named_parts
from aitune.torch.module.tensor_digests import has_plain_values, sample_of


class KeptWeights:
    """Remembers the parameters of a module without copying them.

    Their memory is kept, so what another dtype, device or tensor took the place of can be put back. What was written
    over is lost; it shows in the version counters, and writes through ``.data`` in a few of the values. Buffers are
    left to :func:`preserved_state`, which has copies of them.

    Args:
        module: The module; submodules in plain containers are included.
    """

    def __init__(self, module: torch.nn.Module) -> None:
        self._weights = []
        seen: set[int] = set()
        for path, part in named_parts(module):
            for name, parameter in part._parameters.items():
                if parameter is not None and id(parameter) not in seen:
                    seen.add(id(parameter))
                    self._weights.append(_Weight.of(joined(path, name), parameter))
        self.put_back_names: list[str] = []
        self.lost_names: list[str] = []

    @property
    def names(self) -> frozenset[str]:
        """The names of all of them."""
        return frozenset(weight.name for weight in self._weights)

    def put_back(self) -> None:
        """Put back what can be, and add to the names of what was put back and of what was lost."""
        for weight in self._weights:
            if weight.restore() and weight.name not in self.put_back_names:
                self.put_back_names.append(weight.name)
            if weight.is_written() and weight.name not in self.lost_names:
                self.lost_names.append(weight.name)


@dataclass(frozen=True)
class _Weight:
    name: str
    parameter: torch.nn.Parameter
    values: torch.Tensor
    """The same memory under a tensor of its own."""
    requires_grad: bool
    version: int
    sample: bytes

    @classmethod
    def of(cls, name: str, parameter: torch.nn.Parameter) -> _Weight:
        values = parameter.detach()
        return cls(name, parameter, values, parameter.requires_grad, _version(parameter), sample_of(values))

    def restore(self) -> bool:
        if self.parameter.requires_grad != self.requires_grad:
            self.parameter.requires_grad_(self.requires_grad)
        if _place(self.parameter) == _place(self.values):
            return False
        with torch.inference_mode(self.parameter.is_inference()):
            self.parameter.data = self.values
        return True

    def is_written(self) -> bool:
        return _version(self.parameter) != self.version or sample_of(self.values) != self.sample


def _version(tensor: torch.Tensor) -> int:
    return 0 if tensor.is_inference() else tensor._version


def _place(tensor: torch.Tensor) -> tuple[object, ...]:
    plain = has_plain_values(tensor)
    return (
        tensor.dtype,
        tensor.device,
        tensor.shape,
        tensor.stride() if plain else None,
        tensor.data_ptr() if plain else None,
    )
