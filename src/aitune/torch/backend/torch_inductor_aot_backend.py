"""Runs a graph as a library that torch's Inductor compiled ahead of time."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import torch

from aitune.exceptions import ArtifactError, BuildError
from aitune.torch.backend.artifact_backend import ArtifactBackend
from aitune.torch.backend.artifact_path import ArtifactPath
from aitune.torch.backend.backend import Backend
from aitune.torch.backend.backend_config import BackendConfig, require_named_settings, require_switches
from aitune.torch.backend.export import export_graph, require_free_sizes
from aitune.torch.backend.fingerprint import library_versions
from aitune.torch.backend.flat_module import refused_tensors
from aitune.torch.backend.untouched import untouched
from aitune.torch.backend.verification_calls import require_pure, verification_calls
from aitune.torch.module.graph_spec import GraphSpec
from aitune.torch.module.sample import Sample

PACKAGE_FILE = "model.pt2"
_MODEL_NAME = "model"
_ONE_RUNNER = 1
_CPU_INDEX = -1
"""What the loader calls a CPU; any other index fails there."""


@dataclass(frozen=True)
class TorchInductorAotBackendConfig(BackendConfig):
    """Settings of AOTInductor.

    Args:
        inductor_configs: Settings of Inductor by name, over the ones chosen here.
        freezing: Whether weights become constants of the library, laid out for the kernels; ``None``: on a CPU.

    Raises:
        AITuneUserInputError: A setting has no such value.
    """

    inductor_configs: dict[str, Any] = field(default_factory=dict)
    freezing: bool | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        require_switches(self, "freezing")
        require_named_settings(self, "inductor_configs")


class TorchInductorAotBackend(ArtifactBackend):
    """Compiles a graph to a library with AOTInductor.

    Calls may come from several threads; they run one after the other, each on all of torch's threads.

    Args:
        config: Settings; ``None`` takes the defaults.
    """

    config_type = TorchInductorAotBackendConfig
    config: TorchInductorAotBackendConfig
    native_code: ClassVar[bool] = True
    required_packages: ClassVar[tuple[str, ...]] = ()

    def __init__(self, config: TorchInductorAotBackendConfig | None = None) -> None:
        super().__init__(config)
        self._loader: Any = None
        self._lock = threading.Lock()

    def can_run(self, module: torch.nn.Module, graph_spec: GraphSpec, device: torch.device) -> str | None:
        """Say why the graph cannot be run here; ``None`` when it can be tried."""
        return super().can_run(module, graph_spec, device) or refused_tensors(module, graph_spec)

    def _build(
        self, module: torch.nn.Module, graph_spec: GraphSpec, data: Sequence[Sample], cache_dir: Path
    ) -> Backend:
        import torch._inductor

        exported = export_graph(module, graph_spec, data, self.device)
        calls = verification_calls(exported.flat_module, graph_spec, exported.example, data)
        require_pure((*exported.mutations, *calls.changed), self.describe(), graph_spec.name)
        folder = cache_dir / "inductor"
        folder.mkdir(parents=True, exist_ok=True)
        freezing = self.config.freezing if self.config.freezing is not None else self.device.type == "cpu"
        # One compile thread: more would be processes that outlive a build that is killed.
        settings = {"freezing": freezing, "compile_threads": 1, **self.config.inductor_configs}
        with untouched(exported.flat_module):
            torch._inductor.aoti_compile_and_package(
                exported.program, package_path=str(folder / PACKAGE_FILE), inductor_configs=settings
            )
        require_free_sizes(exported, graph_spec, self.describe())
        self._artifact = ArtifactPath.from_existing(folder, cache_dir)
        self.equal_symbols = exported.equal_symbols
        self._verify(calls.inputs, calls.outputs)
        return self

    def _activate(self) -> None:
        path = self.artifact.path / PACKAGE_FILE
        index = _CPU_INDEX if self.device.type == "cpu" else (self.device.index or 0)
        if not path.exists():
            raise ArtifactError(f"{self.describe()}: its file {path} is missing; build it again")
        try:
            # The C++ loader itself: torch._inductor's own function imports all of Inductor to call it.
            self._loader = torch._C._aoti.AOTIModelPackageLoader(str(path), _MODEL_NAME, False, _ONE_RUNNER, index)
        except RuntimeError as error:
            raise BuildError(f"torch cannot load {path}: {error}", backend=self.describe()) from error

    def _deactivate(self) -> None:
        self._loader = None

    @classmethod
    def _check_versions(cls, versions: Mapping[str, str]) -> None:
        built, here = versions.get("torch"), library_versions(())["torch"]
        if built != here:
            raise ArtifactError(
                f"the library was compiled for torch {built}, this is torch {here}, and their interfaces may differ; "
                f"tune again with this version"
            )

    def run_tensors(self, tensors: Sequence[torch.Tensor]) -> Any:
        """Run one call.

        Args:
            tensors: The input tensors in the order of the graph's input spec. Sizes and dtypes must be those of the
                graph: the library does not check them.
        """
        # The library computes addresses from the sizes alone, as if every input were contiguous.
        inputs = [tensor.detach().contiguous() for tensor in tensors]
        # The loader waits for a free runner with the interpreter's lock held, which the running call needs to end.
        with self._lock:
            outputs = self._loader.boxed_run(inputs)
        return self.graph_spec.make_output(outputs)
