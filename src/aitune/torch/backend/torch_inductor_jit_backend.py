"""Runs a module through torch.compile."""

from __future__ import annotations

import types
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal

import torch

from aitune.exceptions import BuildError
from aitune.torch.backend.autocast import AutocastConfig, cast_outputs
from aitune.torch.backend.backend import Backend, TensorBackend
from aitune.torch.backend.backend_config import require_named_settings, require_switches
from aitune.torch.backend.compile_calls import call_maker, compile_sizes, made_up_sample
from aitune.torch.backend.fingerprint import backend_key
from aitune.torch.backend.flat_module import refused_tensors
from aitune.torch.backend.stored_state import restore_on_module, stored_form
from aitune.torch.backend.untouched import untouched
from aitune.torch.module.graph_spec import GraphSpec
from aitune.torch.module.sample import Sample

_MOST_COMPILATIONS = 64
_CUDA_GRAPH_MODES = ("reduce-overhead", "max-autotune")


@dataclass(frozen=True)
class TorchInductorJitBackendConfig(AutocastConfig):
    """Settings of torch.compile.

    Args:
        autocast_enabled: Whether operators run in ``autocast_dtype`` where torch holds that to be safe.
        autocast_dtype: The lower precision of autocast.
        fullgraph: Whether a module that cannot be compiled as one graph is refused.
        dynamic: ``None`` lets the axes vary that vary in the graph; ``True`` lets all sizes vary; ``False`` compiles
            for the recorded sizes alone, other sizes run uncompiled.
        mode: Mode of torch.compile, such as ``"max-autotune"``.
        options: Settings of Inductor by name, over those of the mode.
        freezing: Whether weights become constants, laid out for the kernels; ``None``: on a CPU.

    Raises:
        AITuneUserInputError: A setting has no such value.
    """

    fullgraph: bool = False
    dynamic: bool | None = None
    mode: str | None = None
    options: dict[str, Any] = field(default_factory=dict)
    freezing: bool | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        require_switches(self, "fullgraph", "dynamic", "freezing")
        require_named_settings(self, "options")


class TorchInductorJitBackend(TensorBackend):
    """Compiles a module with torch.compile when it is built; nothing is compiled while it serves.

    A call that fits nothing that was compiled (another number of threads, say) runs uncompiled. Calls may come from
    several threads. The compiler runs in this process alone.

    Args:
        config: Settings; ``None`` takes the defaults.
    """

    needs_original_module: ClassVar[bool] = True
    recovery: ClassVar[Literal["artifact", "compile", "module"]] = "compile"

    def __init__(self, config: TorchInductorJitBackendConfig | None = None) -> None:
        super().__init__()
        self.config = config if config is not None else TorchInductorJitBackendConfig()
        self.is_exact = not self.config.autocast_enabled
        self.compilations = 0
        self._module: torch.nn.Module | None = None
        self._compiled: Callable[..., Any] | None = None
        self._run_only: Callable[..., Any] | None = None
        self._make_call: Callable[[Sequence[torch.Tensor]], Sample] | None = None
        self._mutates_inputs = False
        self._clones_outputs = False

    @property
    def is_jit(self) -> bool:
        """It compiles in the process that serves."""
        return True

    @property
    def _freezing(self) -> bool:
        return self.config.freezing if self.config.freezing is not None else self.device.type == "cpu"

    def key(self) -> str:
        """Return name, configuration and versions as one string."""
        return backend_key(self.name, self.config, ())

    def describe(self) -> str:
        """Return the name, and the settings that differ from their defaults."""
        return self.config.describe_backend(self.name)

    def can_run(self, module: torch.nn.Module, graph_spec: GraphSpec, device: torch.device) -> str | None:
        """Say why the graph cannot be run here; ``None`` when it can be tried."""
        return super().can_run(module, graph_spec, device) or refused_tensors(module, graph_spec)

    # -- building --------------------------------------------------------------------------------------------------

    def _build(
        self, module: torch.nn.Module, graph_spec: GraphSpec, data: Sequence[Sample], cache_dir: Path
    ) -> Backend:
        self._module = module
        self._compile(data)
        return self

    def _activate(self) -> None:
        if self._run_only is None:
            self._compile([made_up_sample(self.graph_spec, self.device)])

    def _deactivate(self) -> None:
        """What was compiled stays: it is the build."""

    def _deploy(self) -> None:
        """Nothing is left from the build."""

    def _compile(self, data: Sequence[Sample]) -> None:
        import torch._dynamo
        import torch._inductor.config
        from torch._dynamo.utils import counters

        graph_spec, module = self.graph_spec, self._require_module()
        # Frozen weights are constants of the code.
        self.follows_weights = not self._freezing
        compiled = torch.compile(
            _with_own_code(module),
            fullgraph=self.config.fullgraph,
            dynamic=self.config.dynamic,
            options=self._options(),
        )
        self._make_call = call_maker(graph_spec)
        self._clones_outputs = self.device.type == "cuda" and self.config.mode in _CUDA_GRAPH_MODES
        recorded = [graph_spec.symbol_sizes(sample) for sample in data]
        sizes_to_run = compile_sizes(graph_spec, recorded) if self.config.dynamic is not False else recorded
        before, breaks_before = counters["stats"]["unique_graphs"], sum(counters["graph_break"].values())
        limits = torch._dynamo.config.patch(
            recompile_limit=_MOST_COMPILATIONS,
            accumulated_recompile_limit=4 * _MOST_COMPILATIONS,
            fail_on_recompile_limit_hit=True,
        )
        # One compile thread: more would be processes that outlive a build that is killed. Freezing is set for the
        # tracer, too: with the option of the compiler alone the weights would stay inputs and nothing would be frozen.
        settings = torch._inductor.config.patch(compile_threads=1, freezing=self._freezing)
        with untouched(module), limits, settings:
            for sizes in sizes_to_run:
                sample = data[recorded.index(sizes)] if sizes in recorded else graph_spec.resize(data[0], sizes)
                self._compile_for(compiled, sample, is_recorded=sizes in recorded)
        self.compilations = counters["stats"]["unique_graphs"] - before
        self.notes = _notes(self.compilations, sum(counters["graph_break"].values()) - breaks_before)
        self._compiled = compiled
        self._run_only = torch._dynamo.run(compiled)

    def _options(self) -> dict[str, Any]:
        import torch._inductor

        mode_options: dict[str, Any] = {}
        if self.config.mode is not None:
            mode_options = torch._inductor.list_mode_options(self.config.mode, self.config.dynamic)
        return {**mode_options, **self.config.options, "freezing": self._freezing}

    def _compile_for(self, compiled: Callable[..., Any], sample: Sample, is_recorded: bool) -> None:
        tensors = [
            tensor.detach().clone(memory_format=torch.contiguous_format)
            for tensor in self.graph_spec.input_tensors(*sample)
        ]
        self._mark_dynamic(tensors)
        versions = [tensor._version for tensor in tensors]
        args, kwargs = self.graph_spec.make_call(tensors)
        try:
            with self._autocast():
                compiled(*args, **kwargs)
        except Exception:
            # A size inside the bounds that the module itself cannot run is no fault of the compiler.
            if is_recorded or self._original_runs(sample):
                raise
        self._mutates_inputs |= versions != [tensor._version for tensor in tensors]

    def _original_runs(self, sample: Sample) -> bool:
        tensors = [tensor.detach().clone() for tensor in self.graph_spec.input_tensors(*sample)]
        args, kwargs = self.graph_spec.make_call(tensors)
        try:
            self._require_module()(*args, **kwargs)
        except Exception:
            return False
        return True

    def _mark_dynamic(self, tensors: Sequence[torch.Tensor]) -> None:
        import torch._dynamo

        if self.config.dynamic is not None:
            return
        for tensor, spec in zip(tensors, self.graph_spec.input_spec.tensor_specs, strict=True):
            for number, axis in enumerate(spec.axes):
                if axis.symbol is not None and axis.min < axis.max and tensor.shape[number] > 1:
                    torch._dynamo.maybe_mark_dynamic(tensor, number)

    def _require_module(self) -> torch.nn.Module:
        if self._module is None:
            raise BuildError(f"{self.describe()} has no module to compile", backend=self.describe())
        return self._module

    # -- running ---------------------------------------------------------------------------------------------------

    def _autocast(self) -> torch.autocast:
        return torch.autocast(self.device.type, dtype=self.config.autocast_dtype, enabled=self.config.autocast_enabled)

    def run_tensors(self, tensors: Sequence[torch.Tensor]) -> Any:
        """Run one call.

        Args:
            tensors: The input tensors in the order of the graph's input spec.
        """
        # What was compiled holds outside of inference mode only.
        if torch.is_inference_mode_enabled():
            with torch.inference_mode(False):
                return self._run(tensors)
        return self._run(tensors)

    def _run(self, tensors: Sequence[torch.Tensor]) -> Any:
        run, make_call = self._run_only, self._make_call
        with torch.no_grad():
            if not self._mutates_inputs:
                tensors = [_as_compiled(tensor) for tensor in tensors]
            args, kwargs = make_call(tensors)  # type: ignore[misc]
            if self.config.autocast_enabled:
                with self._autocast():
                    output = run(*args, **kwargs)  # type: ignore[misc]
                return cast_outputs(output, self.graph_spec)
            output = run(*args, **kwargs)  # type: ignore[misc]
            return self._clone_outputs(output) if self._clones_outputs else output

    def _clone_outputs(self, output: Any) -> Any:
        # CUDA graphs write every call's outputs to the same memory.
        tensors = self.graph_spec.output_spec.tensors_of(output)
        return self.graph_spec.make_output([tensor.clone() for tensor in tensors])

    # -- data ------------------------------------------------------------------------------------------------------

    def to_dict(self) -> dict[str, Any]:
        """Return configuration and graph; the module is compiled again."""
        return stored_form(self, self.config, ())

    @classmethod
    def from_dict(cls, module: torch.nn.Module | None, state: dict[str, Any]) -> TorchInductorJitBackend:
        """Make an inactive backend that compiles ``module`` when it is activated.

        Args:
            module: The original module.
            state: What :meth:`to_dict` gave.

        Raises:
            ArtifactError: The state is not one of this backend, or no module is given.
        """
        return restore_on_module(cls, TorchInductorJitBackendConfig, module, state, "compiles")


def _with_own_code(module: torch.nn.Module) -> Callable[..., Any]:
    """Return a function that calls the module and has a code object of its own.

    What torch.compile compiled is kept with the code object, and its limits count per code object: with one of its
    own, a backend neither uses up another's limit nor outlives itself.
    """

    def call(*args: Any, **kwargs: Any) -> Any:
        return module(*args, **kwargs)

    return types.FunctionType(call.__code__.replace(), call.__globals__, call.__name__, None, call.__closure__)


def _as_compiled(tensor: torch.Tensor) -> torch.Tensor:
    if tensor.is_inference() or not tensor.is_contiguous():
        return tensor.clone(memory_format=torch.contiguous_format).detach()
    return tensor.detach() if tensor.requires_grad else tensor


def _notes(compilations: int, graph_breaks: int) -> tuple[str, ...]:
    if compilations == 0:
        return ("nothing was compiled: torch.compile left the module as it is",)
    return (f"not compiled as one graph: {graph_breaks} graph breaks",) if graph_breaks else ()
