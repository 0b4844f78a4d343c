"""Ways of running a graph."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aitune.utils.lazy_names import lazy_names

if TYPE_CHECKING:
    from aitune.torch.backend.artifact_path import ArtifactPath
    from aitune.torch.backend.backend import Backend, BackendState, TensorBackend
    from aitune.torch.backend.onnx_runtime_backend import ONNXRuntimeBackend, ONNXRuntimeBackendConfig
    from aitune.torch.backend.openvino_backend import OpenVINOBackend, OpenVINOBackendConfig
    from aitune.torch.backend.registry import BackendEntry, BackendRegistry, override_registry
    from aitune.torch.backend.torch_eager import TorchEagerBackend, TorchEagerBackendConfig
    from aitune.torch.backend.torch_inductor_aot_backend import TorchInductorAotBackend, TorchInductorAotBackendConfig
    from aitune.torch.backend.torch_inductor_jit_backend import TorchInductorJitBackend, TorchInductorJitBackendConfig
    from aitune.torch.backend.torchao_backend import TorchAOBackend, TorchAOBackendConfig

__all__ = [
    "ArtifactPath",
    "Backend",
    "BackendState",
    "TensorBackend",
    "BackendEntry",
    "BackendRegistry",
    "override_registry",
    "TorchEagerBackend",
    "TorchEagerBackendConfig",
    "TorchInductorJitBackend",
    "TorchInductorJitBackendConfig",
    "TorchInductorAotBackend",
    "TorchInductorAotBackendConfig",
    "ONNXRuntimeBackend",
    "ONNXRuntimeBackendConfig",
    "OpenVINOBackend",
    "OpenVINOBackendConfig",
    "TorchAOBackend",
    "TorchAOBackendConfig",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "artifact_path": ("ArtifactPath",),
        "backend": ("Backend", "BackendState", "TensorBackend"),
        "registry": ("BackendEntry", "BackendRegistry", "override_registry"),
        "torch_eager": ("TorchEagerBackend", "TorchEagerBackendConfig"),
        "torch_inductor_jit_backend": ("TorchInductorJitBackend", "TorchInductorJitBackendConfig"),
        "torch_inductor_aot_backend": ("TorchInductorAotBackend", "TorchInductorAotBackendConfig"),
        "onnx_runtime_backend": ("ONNXRuntimeBackend", "ONNXRuntimeBackendConfig"),
        "openvino_backend": ("OpenVINOBackend", "OpenVINOBackendConfig"),
        "torchao_backend": ("TorchAOBackend", "TorchAOBackendConfig"),
    },
)
