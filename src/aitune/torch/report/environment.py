"""The machine and the versions that a result holds for."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path

import torch

from aitune.torch.backend.registry import find_cpp_compiler
from aitune.units import get_metric
from aitune.utils.processor import processor_features, processor_name

BACKEND_PACKAGES = (
    "onnx", "onnxscript", "onnxruntime", "onnxruntime-gpu", "openvino", "torchao", "tensorrt", "torch-tensorrt",
    "transformers",
)  # fmt: skip
"""Distributions whose versions can change a result."""

_FEATURE_FLAGS = (
    "avx2", "avx512f", "avx512_vnni", "avx512_bf16", "avx512_fp16", "avx_vnni", "amx_tile", "amx_bf16", "amx_int8",
    "asimd", "asimddp", "sve", "sve2", "bf16", "i8mm",
)  # fmt: skip
"""Abilities that decide which kernels a backend picks."""

_NO_CGROUP_LIMIT = "max"


@dataclass(frozen=True)
class Environment:
    """The machine and the versions.

    Args:
        python: Version of Python.
        platform: Operating system and architecture.
        processor: Name of the processor.
        processor_features: Its abilities that decide which kernels are used.
        cores: Cores that this process may run on.
        threads: Threads that torch uses for one operator.
        memory_bytes: Memory that this process may use; ``None`` where it is not known.
        torch: Version of torch.
        packages: Versions of the backends' packages that are installed.
        accelerators: Accelerators that torch can use.
        compiler: Path of the C++ compiler; ``None`` when there is none, which leaves torch Inductor out.
    """

    python: str
    platform: str
    processor: str
    processor_features: tuple[str, ...]
    cores: int
    threads: int
    memory_bytes: int | None
    torch: str
    packages: dict[str, str] = field(default_factory=dict)
    accelerators: tuple[str, ...] = ()
    compiler: str | None = None

    def describe(self) -> str:
        """Say machine and versions in one line."""
        versions = ", ".join(f"{name} {version}" for name, version in (("torch", self.torch), *self.packages.items()))
        parts = [
            self.processor,
            f"{self.cores} cores, {self.threads} threads",
            *([get_metric("size").format(self.memory_bytes)] if self.memory_bytes else []),
            *self.accelerators,
            f"Python {self.python}",
            versions,
        ]
        return "; ".join(parts)


@dataclass(frozen=True)
class CacheFolder:
    """The folder for builds and samples.

    Args:
        path: Where it is.
        exists: Whether it is there; it is made when it is first needed.
        writable: Whether this process can write there, or can make it.
        size_bytes: Size of all files in it.
    """

    path: str
    exists: bool
    writable: bool
    size_bytes: int


def gather_environment() -> Environment:
    """Look at this machine; no backend's package is imported, no accelerator is initialised."""
    return Environment(
        python=platform.python_version(),
        platform=f"{platform.system()} {platform.release()} {platform.machine()}",
        processor=processor_name(),
        processor_features=_processor_features(),
        cores=_usable_cores(),
        threads=torch.get_num_threads(),
        memory_bytes=_usable_memory(),
        torch=str(torch.__version__),
        packages=installed_versions(BACKEND_PACKAGES),
        accelerators=_accelerators(),
        compiler=find_cpp_compiler(),
    )


def installed_versions(distributions: tuple[str, ...]) -> dict[str, str]:
    """Return the versions of those distributions that are installed, without importing them.

    Args:
        distributions: Names as an installer knows them.
    """
    versions = {}
    for name in distributions:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return versions


def inspect_cache_folder(path: Path) -> CacheFolder:
    """Look at the cache folder without making it.

    Args:
        path: Where it is or would be.
    """
    holder = next((folder for folder in (path, *path.parents) if folder.exists()), path)
    writable = holder.is_dir() and os.access(holder, os.W_OK | os.X_OK)
    return CacheFolder(str(path), path.is_dir(), writable, sum(_file_sizes(path)))


def _file_sizes(folder: Path) -> Iterator[int]:
    for parent, _, names in os.walk(folder):
        for name in names:
            try:
                yield os.lstat(os.path.join(parent, name)).st_size
            except OSError:  # another process may clear the cache meanwhile
                continue


def _processor_features() -> tuple[str, ...]:
    """Return the abilities that speed depends on, of those that compiled code may rely on."""
    known = processor_features()
    found = tuple(flag for flag in _FEATURE_FLAGS if flag in known)
    return found or (torch.backends.cpu.get_cpu_capability().lower(),)


def _usable_cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _usable_memory() -> int | None:
    limits = [limit for limit in (_physical_memory(), _cgroup_memory()) if limit is not None]
    return min(limits, default=None)


def _physical_memory() -> int | None:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return None


def _cgroup_memory() -> int | None:
    try:
        limit = Path("/sys/fs/cgroup/memory.max").read_text(encoding="ascii").strip()
    except OSError:
        return None
    return None if limit == _NO_CGROUP_LIMIT else int(limit)


def _accelerators() -> tuple[str, ...]:
    # Asking for a name initialises CUDA, which takes memory of the device; counting does not.
    count = torch.cuda.device_count()
    if count and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return tuple(torch.cuda.get_device_name(index) for index in range(count))
    return (f"{count} CUDA device{'s' if count > 1 else ''}",) if count else ()
