"""Which candidates are tried when the user names none.

The order is the order of preference between candidates of equal speed, cheap builds first. What cannot run here stays
in the list and is reported with its reason.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from aitune.torch.backend.backend import Backend
from aitune.torch.backend.registry import registry

Choice = tuple[str, Mapping[str, Any]]
"""Registry name of a backend, and the settings that differ from its defaults."""

_CPU_AHEAD: tuple[Choice, ...] = (
    ("ONNXRuntime", {}),
    ("OpenVINO", {}),
    ("TorchInductorAot", {}),
    ("TorchInductorJit", {}),
)
_CPU_JIT: tuple[Choice, ...] = (("ONNXRuntime", {}), ("OpenVINO", {}), ("TorchInductorJit", {}))
_CUDA_AHEAD: tuple[Choice, ...] = (
    ("TensorRT", {"use_dynamo": True}),
    ("TensorRT", {"use_dynamo": False}),
    ("TorchInductorAot", {}),
    ("TorchTensorRTAot", {}),
    ("TorchInductorJit", {}),
)
_CUDA_JIT: tuple[Choice, ...] = (("TorchInductorJit", {}),)
_DISTRIBUTED: tuple[Choice, ...] = (("TorchInductorJit", {}), ("TorchInductorAot", {}))
_CHANNELS_LAST: tuple[Choice, ...] = (("TorchEager", {"channels_last": True}),)
# Tried only under an accuracy budget, after all others: between equals the one that keeps the precision stays.
_BFLOAT16: Mapping[str, Any] = {"autocast_enabled": True, "autocast_dtype": torch.bfloat16}
_CPU_LOSSY_AHEAD: tuple[Choice, ...] = (
    ("OpenVINO", {"precision": "bf16"}),
    ("ONNXRuntime", {"quantization": "int8_dynamic"}),
    ("TorchEager", _BFLOAT16),
    ("TorchInductorJit", _BFLOAT16),
    ("TorchAO", {}),
)
_CPU_LOSSY_JIT: tuple[Choice, ...] = _CPU_LOSSY_AHEAD[:3]
_CUDA_LOSSY: tuple[Choice, ...] = (
    ("TorchInductorJit", _BFLOAT16),
    ("TorchEager", _BFLOAT16),
    ("TorchAO", {"compile": True}),
)
_CHANNELS_LAST_LOSSY: tuple[Choice, ...] = (("TorchEager", {"channels_last": True, **_BFLOAT16}),)
_CONVOLUTIONS = (torch.nn.Conv2d, torch.nn.Conv3d, torch.nn.ConvTranspose2d, torch.nn.ConvTranspose3d)


@dataclass(frozen=True)
class ModuleKind:
    """What the default candidates depend on.

    Args:
        device: Device type of the module.
        distributed: Whether it is spread over several processes.
        has_convolutions: Whether it has convolutions over images or volumes.
        may_lose_precision: Whether the user has set a budget for candidates that give precision away.
    """

    device: str = "cpu"
    distributed: bool = False
    has_convolutions: bool = False
    may_lose_precision: bool = False

    @classmethod
    def of(cls, module: torch.nn.Module) -> ModuleKind:
        """Look at a module."""
        tensors = [*module.parameters(), *module.buffers()]
        device = tensors[0].device.type if tensors else "cpu"
        convolutions = any(isinstance(part, _CONVOLUTIONS) for part in module.modules())
        return cls(device, _is_distributed(module, tensors), convolutions)


def _is_distributed(module: torch.nn.Module, tensors: list[torch.Tensor]) -> bool:
    # By name, so that torch.distributed is not imported for modules that do not use it.
    if any(cls.__name__ == "DTensor" for tensor in tensors for cls in type(tensor).__mro__):
        return True
    names = {"FSDPModule", "DistributedDataParallel", "FullyShardedDataParallel"}
    return any(cls.__name__ in names for part in module.modules() for cls in type(part).__mro__)


def default_aot_candidates(kind: ModuleKind, distributed: bool) -> list[Backend]:
    """Return the candidates for tuning ahead of time.

    Args:
        kind: What the module is.
        distributed: Whether it is spread over several processes.
    """
    if distributed:
        return _make(_DISTRIBUTED)
    choices = _CPU_AHEAD if kind.device == "cpu" else _CUDA_AHEAD
    lossy = _CPU_LOSSY_AHEAD if kind.device == "cpu" else _CUDA_LOSSY
    exact = (*choices, *(_CHANNELS_LAST if kind.has_convolutions else ()))
    return _make((*exact, *_if_allowed(kind, lossy)))


def default_jit_candidates(kind: ModuleKind, distributed: bool) -> list[Backend]:
    """Return the candidates for tuning while the program runs; see :func:`default_aot_candidates`."""
    if distributed:
        return _make(_DISTRIBUTED)
    exact, lossy = (_CPU_JIT, _CPU_LOSSY_JIT) if kind.device == "cpu" else (_CUDA_JIT, _CUDA_LOSSY[:1])
    return _make((*exact, *_if_allowed(kind, lossy)))


def _if_allowed(kind: ModuleKind, lossy: Sequence[Choice]) -> Sequence[Choice]:
    if not kind.may_lose_precision:
        return ()
    return (*lossy, *(_CHANNELS_LAST_LOSSY if kind.has_convolutions else ()))


def _make(choices: Sequence[Choice]) -> list[Backend]:
    registered = {entry.name for entry in registry.entries}
    return [_configured(name, settings) for name, settings in choices if name in registered]


def _configured(name: str, settings: Mapping[str, Any]) -> Backend:
    plain: Any = registry.load(name)()
    backend: Backend = type(plain)(replace(plain.config, **settings)) if settings else plain
    return backend
