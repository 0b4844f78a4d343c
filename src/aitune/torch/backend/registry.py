"""Which backends exist, what each needs, and whether it can run here; none is imported to find out."""

from __future__ import annotations

import importlib
import importlib.util
import os
import shutil
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from aitune.exceptions import AITuneEnvironmentError, AITuneUserInputError, ArtifactError, BackendUnavailableError
from aitune.torch.backend.backend import Backend
from aitune.utils.error_text import error_line


@dataclass(frozen=True)
class BackendEntry:
    """A backend, described without importing it.

    Args:
        name: Name of the backend, such as ``"ONNXRuntime"``.
        location: Where its class is: ``"package.module:Class"``.
        required_packages: Packages that must be importable.
        extra: Extra of this distribution that installs them.
        device_types: Kinds of device that it can run on.
        needs_compiler: Whether it calls a C++ compiler when it builds for a CPU.

    Raises:
        AITuneUserInputError: The location has another form.
    """

    name: str
    location: str
    required_packages: tuple[str, ...] = ()
    extra: str | None = None
    device_types: tuple[str, ...] = ("cpu", "cuda")
    needs_compiler: bool = False

    def __post_init__(self) -> None:
        module, colon, cls = self.location.partition(":")
        if not (module and colon and cls):
            raise AITuneUserInputError(
                f"backend {self.name!r}: location must look like 'package.module:Class', got {self.location!r}"
            )

    def missing_packages(self) -> list[str]:
        """Return the required packages that are not installed."""
        return [package for package in self.required_packages if not _is_installed(package)]

    def install_command(self, missing: Sequence[str]) -> str:
        """Return the command that installs what is missing.

        Args:
            missing: The packages.
        """
        return f'pip install "aitune-open[{self.extra}]"' if self.extra else f"pip install {' '.join(missing)}"


class BackendRegistry:
    """Backends by name; also the list of those that a stored state may name.

    Args:
        entries: The backends, in the order in which they are tried.

    Raises:
        AITuneUserInputError: Two backends have one name.
    """

    def __init__(self, entries: Iterable[BackendEntry] = ()) -> None:
        self._entries: dict[str, BackendEntry] = {}
        for entry in entries:
            self.register(entry)

    @property
    def entries(self) -> tuple[BackendEntry, ...]:
        """The backends, in the order in which they were registered."""
        return tuple(self._entries.values())

    def register(self, entry: BackendEntry) -> None:
        """Add a backend; the same one again changes nothing.

        Args:
            entry: The backend.

        Raises:
            AITuneUserInputError: The name stands for another backend already.
        """
        present = self._entries.setdefault(entry.name, entry)
        if present != entry:
            raise AITuneUserInputError(
                f"backend name {entry.name!r} stands for {present.location} already; choose another name"
            )

    def entry(self, name: str) -> BackendEntry:
        """Return the description of a backend.

        Args:
            name: Name of the backend.

        Raises:
            AITuneUserInputError: There is none of that name.
        """
        if name not in self._entries:
            known = ", ".join(self._entries) or "none"
            raise AITuneUserInputError(f"there is no backend named {name!r}; known backends: {known}")
        return self._entries[name]

    def load(self, name: str) -> type[Backend]:
        """Import the class of a backend.

        Args:
            name: Name of the backend.

        Raises:
            AITuneUserInputError: There is none of that name.
            BackendUnavailableError: Its module cannot be imported, or holds no such backend.
        """
        module_name, _, class_name = self.entry(name).location.partition(":")
        try:
            cls = getattr(importlib.import_module(module_name), class_name)
        except Exception as error:
            # A library that does not load gives an OSError, and the module of a user may raise anything.
            raise BackendUnavailableError(f"backend {name} cannot be imported: {error_line(error)}") from error
        if not (isinstance(cls, type) and issubclass(cls, Backend)):
            raise BackendUnavailableError(f"backend {name}: {module_name}:{class_name} is not a Backend class")
        return cls

    def unavailable_reason(self, name: str, device: torch.device) -> str | None:
        """Say why a backend cannot run here and what would help; ``None`` when it can.

        Args:
            name: Name of the backend.
            device: Device to run on.

        Raises:
            AITuneUserInputError: There is no backend of that name.
        """
        entry = self.entry(name)
        if device.type not in entry.device_types:
            return f"runs on {', '.join(entry.device_types)}, not on {device.type}"
        missing = entry.missing_packages()
        if missing:
            return f"{', '.join(missing)} not installed; run: {entry.install_command(missing)}"
        if entry.needs_compiler and device.type == "cpu" and find_cpp_compiler() is None:
            return (
                "no C++ compiler found, which torch's Inductor needs to build for a CPU; install one (g++, or Xcode's "
                "command line tools, or MSVC), or name it in the environment variable CXX"
            )
        return None

    def restore(self, module: torch.nn.Module | None, state: Mapping[str, Any]) -> Backend:
        """Make a built backend from its stored state. Only registered backends are imported, whatever the state says.

        Args:
            module: The original module, for backends that need it.
            state: What :meth:`Backend.to_dict` gave, with artifact paths that exist here.

        Raises:
            ArtifactError: The state names no registered backend, or is not one of that backend.
            AITuneEnvironmentError: The backend's package is not installed.
        """
        name = state.get("backend")
        if not isinstance(name, str) or name not in self._entries:
            known = ", ".join(self._entries) or "none"
            raise ArtifactError(f"the stored state names backend {name!r}, which is not registered; known: {known}")
        entry = self._entries[name]
        missing = entry.missing_packages()
        if missing:
            command = entry.install_command(missing)
            raise AITuneEnvironmentError(f"backend {name} needs {', '.join(missing)}; run: {command}")
        return self.load(name).from_dict(module, dict(state))


def _is_installed(package: str) -> bool:
    try:
        return importlib.util.find_spec(package) is not None
    except (ImportError, ValueError):
        return False


def find_cpp_compiler() -> str | None:
    """Return the C++ compiler that Inductor would call, or ``None``.

    It asks for the one named in ``CXX``, else for the platform's own, as ``torch._inductor.config.cpp.cxx`` does.
    """
    named = os.environ.get("CXX")
    usual = {"darwin": ("clang++",), "win32": ("cl",)}.get(sys.platform, ("g++",))
    return next((found for name in ((named,) if named else usual) if (found := shutil.which(name))), None)


_HERE = "aitune.torch.backend"

registry = BackendRegistry(
    (
        BackendEntry("TorchEager", f"{_HERE}.torch_eager:TorchEagerBackend"),
        BackendEntry(
            "ONNXRuntime",
            f"{_HERE}.onnx_runtime_backend:ONNXRuntimeBackend",
            required_packages=("onnxruntime", "onnx", "onnxscript"),
            extra="onnx",
            device_types=("cpu",),
        ),
        BackendEntry(
            "OpenVINO",
            f"{_HERE}.openvino_backend:OpenVINOBackend",
            required_packages=("openvino",),
            extra="openvino",
            device_types=("cpu",),
        ),
        BackendEntry(
            "TorchInductorJit", f"{_HERE}.torch_inductor_jit_backend:TorchInductorJitBackend", needs_compiler=True
        ),
        BackendEntry(
            "TorchInductorAot", f"{_HERE}.torch_inductor_aot_backend:TorchInductorAotBackend", needs_compiler=True
        ),
        BackendEntry(
            "TorchAO", f"{_HERE}.torchao_backend:TorchAOBackend", required_packages=("torchao",), extra="torchao"
        ),
    )
)
"""The backends that a run knows; users add theirs with ``registry.register``."""


@contextmanager
def override_registry(replacement: BackendRegistry) -> Iterator[BackendRegistry]:
    """Let :data:`registry` hold other backends inside a ``with`` block.

    Args:
        replacement: The backends that hold inside the block.
    """
    before = registry._entries
    registry._entries = replacement._entries
    try:
        yield registry
    finally:
        registry._entries = before
