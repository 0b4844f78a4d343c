"""Runs a graph with ONNX Runtime."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Literal

import torch

from aitune.exceptions import BuildError
from aitune.torch.backend.artifact_backend import ArtifactBackend
from aitune.torch.backend.artifact_path import ArtifactPath
from aitune.torch.backend.backend import Backend
from aitune.torch.backend.backend_config import BackendConfig, require_choice, require_positive, require_switches
from aitune.torch.backend.export import export_graph, make_example
from aitune.torch.backend.export_onnx import MODEL_FILE, input_name, onnx_from_export, onnx_from_trace, output_name
from aitune.torch.backend.flat_module import FlatModule, refused_tensors
from aitune.torch.backend.quantize_onnx import quantize_dynamic_int8
from aitune.torch.backend.threads import thread_budget
from aitune.torch.backend.verification_calls import require_pure, verification_calls
from aitune.torch.module.graph_spec import GraphSpec
from aitune.torch.module.sample import Sample

_DTYPES = frozenset(
    {
        torch.float32, torch.float64, torch.float16, torch.bool,
        torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8,
    }
)  # fmt: skip
_ERRORS_ONLY = 3
_CRASHES_ONLY = 4


@dataclass(frozen=True)
class ONNXRuntimeBackendConfig(BackendConfig):
    """Settings of ONNX Runtime.

    Args:
        use_dynamo: Export from torch.export (``True``), by tracing (``False``), or the first and then the second.
        execution_provider: Execution provider of ONNX Runtime to ask first; the CPU provider is always the last resort.
        opset_version: Version of ONNX's operator set; ``None`` leaves it to the exporter.
        num_threads: Threads of one call; ``None`` takes ``aitune.config.num_threads``, else torch's number.
        allow_spinning: Whether idle threads wait busily. That saves microseconds when calls follow at once, and takes
            the cores from whatever else runs.
        quantization: ``"int8_dynamic"`` computes matrix products and convolutions on 8-bit integers, which gives
            precision away.

    Raises:
        AITuneUserInputError: A setting has no such value.
    """

    use_dynamo: bool | None = None
    execution_provider: str | None = None
    opset_version: int | None = None
    num_threads: int | None = None
    allow_spinning: bool = False
    quantization: Literal["int8_dynamic"] | None = None

    def __post_init__(self) -> None:
        require_positive(self, "opset_version")
        require_positive(self, "num_threads")
        super().__post_init__()
        require_switches(self, "use_dynamo", "allow_spinning")
        require_choice(self, "quantization", (None, "int8_dynamic"))


class ONNXRuntimeBackend(ArtifactBackend):
    """Exports a graph to ONNX and runs it with ONNX Runtime on a CPU.

    Inputs are read in place; outputs are memory of their own. Calls may come from several threads.

    Args:
        config: Settings; ``None`` takes the defaults.
    """

    config_type = ONNXRuntimeBackendConfig
    config: ONNXRuntimeBackendConfig
    device_types: ClassVar[tuple[str, ...]] = ("cpu",)
    required_packages: ClassVar[tuple[str, ...]] = ("onnxruntime", "onnx", "onnxscript")
    survives_bad_indices: ClassVar[bool] = True
    version_packages: ClassVar[tuple[str, ...]] = required_packages
    extra: ClassVar[str | None] = "onnx"

    def __init__(self, config: ONNXRuntimeBackendConfig | None = None) -> None:
        super().__init__(config)
        self.is_exact = self.config.quantization is None
        self._session: Any = None
        self._run_options: Any = None
        self._inputs: tuple[tuple[str, int], ...] = ()
        self._outputs: tuple[str, ...] = ()

    def can_run(self, module: torch.nn.Module, graph_spec: GraphSpec, device: torch.device) -> str | None:
        """Say why the graph cannot be run here; ``None`` when it can be tried."""
        return super().can_run(module, graph_spec, device) or refused_tensors(module, graph_spec, _DTYPES)

    def _build(
        self, module: torch.nn.Module, graph_spec: GraphSpec, data: Sequence[Sample], cache_dir: Path
    ) -> Backend:
        flat_module = FlatModule(module, graph_spec)
        example = make_example(graph_spec, data, self.device)
        calls = verification_calls(flat_module, graph_spec, example, data)
        require_pure(calls.changed, self.describe(), graph_spec.name)
        folder = cache_dir / "onnx"

        def from_export(target: Path) -> None:
            exported = export_graph(module, graph_spec, data, self.device)
            require_pure(exported.mutations, self.describe(), graph_spec.name)
            onnx_from_export(exported, graph_spec, target, self.config.opset_version)
            self.equal_symbols = exported.equal_symbols

        def from_trace(target: Path) -> None:
            onnx_from_trace(flat_module, example, graph_spec, target, self.config.opset_version)
            self.notes = ("exported by tracing one run: a branch on values or sizes would stay as that run took it",)

        ways = {True: [from_export], False: [from_trace], None: [from_export, from_trace]}[self.config.use_dynamo]
        written = [partial(self._write, way, folder, cache_dir) for way in ways]
        self._build_first_way_that_works(written, calls)
        return self

    def _write(self, way: Callable[[Path], None], folder: Path, cache_dir: Path) -> None:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        self.notes = ()
        way(folder)
        if self.config.quantization is not None:
            count = quantize_dynamic_int8(folder / MODEL_FILE, self.describe())
            self.notes = (*self.notes, f"{count} operators compute on 8-bit integers")
        self._artifact = ArtifactPath.from_existing(folder, cache_dir)

    def _activate(self) -> None:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.log_severity_level = _ERRORS_ONLY
        options.intra_op_num_threads = thread_budget(self.config.num_threads)
        options.inter_op_num_threads = 1
        options.add_session_config_entry("session.intra_op.allow_spinning", "1" if self.config.allow_spinning else "0")
        providers = [self.config.execution_provider] if self.config.execution_provider else []
        path = self.artifact.path / MODEL_FILE
        try:
            session = onnxruntime.InferenceSession(str(path), options, providers=[*providers, "CPUExecutionProvider"])
        except Exception as error:
            raise BuildError(
                f"ONNX Runtime cannot load {path}: {type(error).__name__}: {error}", backend=self.describe()
            ) from error
        names = {input_name(i): i for i in range(len(self.graph_spec.input_spec.tensor_specs))}
        # An input that the forward does not use may be missing.
        self._inputs = tuple((entry.name, names[entry.name]) for entry in session.get_inputs())
        self._outputs = tuple(output_name(i) for i in range(len(self.graph_spec.output_spec.tensor_specs)))
        # What goes wrong in a call is raised; the runtime would also write it to the terminal, past Python's logging.
        self._run_options = onnxruntime.RunOptions()
        self._run_options.log_severity_level = _CRASHES_ONLY
        self._session = session

    def _deactivate(self) -> None:
        self._session = self._run_options = None

    def run_tensors(self, tensors: Sequence[torch.Tensor]) -> Any:
        """Run one call.

        Args:
            tensors: The input tensors in the order of the graph's input spec.
        """
        feed = {name: tensors[position].detach().numpy() for name, position in self._inputs}
        outputs = self._session.run(self._outputs, feed, self._run_options)
        return self.graph_spec.make_output([torch.from_numpy(output) for output in outputs])
