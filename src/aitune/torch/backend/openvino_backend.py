"""Runs a graph with OpenVINO."""

from __future__ import annotations

import shutil
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Literal

import torch

from aitune.exceptions import BuildError, ExportError, InferenceError
from aitune.torch.backend.artifact_backend import ArtifactBackend
from aitune.torch.backend.artifact_path import ArtifactPath
from aitune.torch.backend.backend import Backend
from aitune.torch.backend.backend_config import BackendConfig, require_choice, require_positive
from aitune.torch.backend.export import ExportedGraph, export_graph, make_example
from aitune.torch.backend.export_onnx import input_name, onnx_from_export
from aitune.torch.backend.flat_module import FlatModule, refused_tensors
from aitune.torch.backend.quiet_converters import quiet_converters
from aitune.torch.backend.threads import thread_budget
from aitune.torch.backend.untouched import untouched
from aitune.torch.backend.verification_calls import require_pure, verification_calls
from aitune.torch.module.graph_spec import GraphSpec
from aitune.torch.module.sample import Sample
from aitune.utils.error_text import error_lines

MODEL_FILE = "model.xml"
_MESSAGE_LINES = 3
# float64 would come back with float32's precision; bfloat16 has no numpy form to hand over.
_DTYPES = frozenset(
    {torch.float32, torch.float16, torch.bool, torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8}
)


@dataclass(frozen=True)
class OpenVINOBackendConfig(BackendConfig):
    """Settings of OpenVINO.

    Args:
        precision: What it computes in; ``"bf16"`` and ``"f16"`` give precision away.
        performance_hint: Whether one call shall be fast, or many at once.
        conversion: How the model is made: from the exported program, through ONNX, from the module by tracing one run,
            or the first of these that works.
        num_threads: Threads of one call; ``None`` takes ``aitune.config.num_threads``, else torch's number.

    Raises:
        AITuneUserInputError: A setting has no such value.
    """

    precision: Literal["f32", "bf16", "f16"] = "f32"
    performance_hint: Literal["latency", "throughput"] = "latency"
    conversion: Literal["auto", "export", "onnx", "module"] = "auto"
    num_threads: int | None = None

    def __post_init__(self) -> None:
        require_positive(self, "num_threads")
        super().__post_init__()
        require_choice(self, "precision", ("f32", "bf16", "f16"))
        require_choice(self, "performance_hint", ("latency", "throughput"))
        require_choice(self, "conversion", ("auto", "export", "onnx", "module"))


class OpenVINOBackend(ArtifactBackend):
    """Converts a graph to OpenVINO's format and runs it on a CPU.

    Each call takes an infer request of its own from a pool, so calls may come from several threads. Inputs are read in
    place, outputs are copied out of the request.

    Args:
        config: Settings; ``None`` takes the defaults.
    """

    config_type = OpenVINOBackendConfig
    config: OpenVINOBackendConfig
    device_types: ClassVar[tuple[str, ...]] = ("cpu",)
    required_packages: ClassVar[tuple[str, ...]] = ("openvino",)
    survives_bad_indices: ClassVar[bool] = True
    version_packages: ClassVar[tuple[str, ...]] = required_packages
    extra: ClassVar[str | None] = "openvino"

    def __init__(self, config: OpenVINOBackendConfig | None = None) -> None:
        super().__init__(config)
        self.is_exact = self.config.precision == "f32"
        self._compiled: Any = None
        self._tensor_type: Any = None
        self._idle: deque[Any] = deque()
        self._inputs: tuple[int, ...] = ()
        self._output_dtypes: tuple[torch.dtype, ...] = ()

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

        def exported() -> ExportedGraph:
            graph = export_graph(module, graph_spec, data, self.device)
            require_pure(graph.mutations, self.describe(), graph_spec.name)
            self.equal_symbols = graph.equal_symbols
            return graph

        ways: dict[str, Callable[[Path], Any]] = {
            "export": lambda folder: _convert_export(exported()),
            "onnx": lambda folder: _convert_onnx(exported(), graph_spec, folder),
            "module": lambda folder: _convert_module(flat_module, example),
        }
        chosen = list(ways) if self.config.conversion == "auto" else [self.config.conversion]
        written = [partial(self._write, ways[name], _SOURCES[name], cache_dir) for name in chosen]
        self._build_first_way_that_works(written, calls)
        return self

    def _write(self, convert: Callable[[Path], Any], source: str, cache_dir: Path) -> None:
        folder, scratch = cache_dir / "openvino", cache_dir / "openvino-scratch"
        self.equal_symbols, self.notes = (), (f"converted from the {source}",)
        for each in (folder, scratch):
            shutil.rmtree(each, ignore_errors=True)
            each.mkdir(parents=True)
        try:
            _save(convert(scratch), folder / MODEL_FILE)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
        self._artifact = ArtifactPath.from_existing(folder, cache_dir)

    def _activate(self) -> None:
        import openvino

        properties = {
            "INFERENCE_PRECISION_HINT": self.config.precision,
            "PERFORMANCE_HINT": self.config.performance_hint.upper(),
            "INFERENCE_NUM_THREADS": thread_budget(self.config.num_threads),
            # Pinned threads stay on the cores that the next candidate needs.
            "ENABLE_CPU_PINNING": False,
        }
        path = self.artifact.path / MODEL_FILE
        try:
            core = openvino.Core()
            self._compiled = core.compile_model(core.read_model(str(path)), "CPU", properties)
        except Exception as error:
            raise BuildError(
                f"OpenVINO cannot load {path}: {type(error).__name__}: {error}", backend=self.describe()
            ) from error
        self._tensor_type = openvino.Tensor
        self._idle = deque()
        names = {input_name(i): i for i in range(len(self.graph_spec.input_spec.tensor_specs))}
        self._inputs = tuple(
            next(names[name] for name in port.get_names() if name in names) for port in self._compiled.inputs
        )
        self._output_dtypes = tuple(spec.dtype for spec in self.graph_spec.output_spec.tensor_specs)

    def _deactivate(self) -> None:
        self._idle.clear()
        self._compiled = None

    def run_tensors(self, tensors: Sequence[torch.Tensor]) -> Any:
        """Run one call.

        Args:
            tensors: The input tensors in the order of the graph's input spec.
        """
        try:
            request = self._idle.pop()
        except IndexError:
            request = self._compiled.create_infer_request()
        # The request reads this memory while it runs; these references keep it alive until it is done.
        arrays = [_as_int32_fits(tensors[position]).contiguous().numpy() for position in self._inputs]
        for number, array in enumerate(arrays):
            request.set_input_tensor(number, self._tensor_type(array, shared_memory=True))
        request.infer()
        outputs = [
            torch.from_numpy(request.get_output_tensor(number).data).to(dtype, copy=True)
            for number, dtype in enumerate(self._output_dtypes)
        ]
        self._idle.append(request)
        return self.graph_spec.make_output(outputs)


def _as_int32_fits(tensor: torch.Tensor) -> torch.Tensor:
    """Return the tensor when OpenVINO, which computes int64 as int32, can hold its values."""
    tensor = tensor.detach()
    if tensor.dtype is torch.int64 and tensor.numel():
        low, high = torch.aminmax(tensor)
        if int(low) < _INT32.min or int(high) > _INT32.max:
            raise InferenceError(
                f"an int64 input holds values from {int(low)} to {int(high)}; OpenVINO computes in int32, so such a "
                f"call has to run on the original module"
            )
    return tensor


_INT32 = torch.iinfo(torch.int32)
_SOURCES = {"export": "exported program", "onnx": "ONNX model", "module": "module, by tracing one run"}


def _convert_export(exported: ExportedGraph) -> Any:
    import openvino

    try:
        with quiet_converters():
            model = openvino.convert_model(exported.program)
    except Exception as error:
        raise ExportError(
            f"OpenVINO cannot convert the exported program: {error_lines(error, _MESSAGE_LINES)}"
        ) from error
    # An input that the forward does not use may be missing; the others keep the names of the program.
    positions = {name: position for position, name in enumerate(exported.program.graph_signature.user_inputs)}
    for port in model.inputs:
        known = [positions[name] for name in port.get_names() if name in positions]
        if len(known) != 1:
            raise ExportError(f"OpenVINO named an input {sorted(port.get_names())}, which is none of the program's")
        port.get_tensor().set_names({input_name(known[0])})
    return model


def _convert_onnx(exported: ExportedGraph, graph_spec: GraphSpec, folder: Path) -> Any:
    import openvino

    path = onnx_from_export(exported, graph_spec, folder)
    try:
        with quiet_converters():
            return openvino.convert_model(str(path))
    except Exception as error:
        raise ExportError(f"OpenVINO cannot convert the ONNX model: {error_lines(error, _MESSAGE_LINES)}") from error


def _convert_module(flat_module: FlatModule, example: tuple[torch.Tensor, ...]) -> Any:
    import openvino

    with untouched(flat_module), quiet_converters():
        try:
            model = openvino.convert_model(flat_module, example_input=tuple(tensor.clone() for tensor in example))
        except Exception as error:
            raise ExportError(f"OpenVINO cannot convert the module: {error_lines(error, _MESSAGE_LINES)}") from error
    if len(model.inputs) != len(example):
        raise ExportError(f"OpenVINO kept {len(model.inputs)} of {len(example)} inputs; which is which is not known")
    for position, port in enumerate(model.inputs):
        port.get_tensor().set_names({input_name(position)})
    return model


def _save(model: Any, path: Path) -> None:
    import openvino

    # Compressed weights would be float16.
    openvino.save_model(model, str(path), compress_to_fp16=False)
