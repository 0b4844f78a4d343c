"""What a build needs of the machine that it runs on, and what this machine has."""

from __future__ import annotations

import platform
from collections.abc import Mapping

import torch

from aitune.artifact.manifest import EnvironmentRecord, RequirementsRecord
from aitune.torch.backend.fingerprint import library_versions
from aitune.utils.processor import processor_features, processor_name

_PACKAGES = ("onnxruntime", "openvino", "torchao", "tensorrt", "torch-tensorrt", "transformers")


def requirements_of(native_code: bool, device: torch.device) -> RequirementsRecord:
    """Describe what a build made on this machine needs.

    Inductor compiles with ``-march=native``: a library may use everything that the compiler knew of the processor.

    Args:
        native_code: Whether it is machine code.
        device: Device that it was built for.
    """
    capability = None
    if device.type == "cuda":
        capability = ".".join(str(part) for part in torch.cuda.get_device_capability(device))
    if not native_code:
        return RequirementsRecord(device_type=device.type, compute_capability=capability)
    return RequirementsRecord(
        system=platform.system(),
        machine=platform.machine(),
        processor_features=processor_features(),
        device_type=device.type,
        compute_capability=capability,
    )


def devices_here() -> Mapping[str, tuple[str | None, ...]]:
    """Return the devices beside the CPU: kind -> compute capability of each."""
    if not torch.cuda.is_available():
        return {}
    numbers = range(torch.cuda.device_count())
    return {"cuda": tuple(".".join(str(p) for p in torch.cuda.get_device_capability(number)) for number in numbers)}


def describe_environment() -> EnvironmentRecord:
    """Describe this machine and its versions, for the manifest."""
    versions = library_versions(_PACKAGES)
    return EnvironmentRecord(
        python=platform.python_version(),
        system=platform.system(),
        machine=platform.machine(),
        processor=processor_name(),
        processor_features=processor_features(),
        torch=str(torch.__version__),
        packages={name: version for name, version in versions.items() if version != "none" and name in _PACKAGES},
        accelerators=tuple(
            torch.cuda.get_device_name(number)
            for number in (range(torch.cuda.device_count()) if torch.cuda.is_initialized() else ())  # type: ignore[no-untyped-call]
        ),
    )
