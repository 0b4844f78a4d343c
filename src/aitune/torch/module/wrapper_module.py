"""``ait.Module``: the proxy that a user holds in place of a module, with its states."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from aitune.exceptions import AITuneError, AITuneUserInputError
from aitune.torch.config import config
from aitune.torch.dynamic_shapes import DynamicShapes, check_dynamic_shapes
from aitune.torch.module.call_statistics import CallStatistics
from aitune.torch.module.changed_arguments import as_function
from aitune.torch.module.forward_signature import ForwardSignature
from aitune.torch.module.graph_spec import GraphSpec
from aitune.torch.module.graph_tuning import GraphTuning, Strategies, Tuner, check_tuners, device_to_tune_for
from aitune.torch.module.hook_watch import submodules_with_hooks
from aitune.torch.module.interception import Interception
from aitune.torch.module.module_state import ModuleState
from aitune.torch.module.plain_data import graph_spec_from_dict, graph_spec_to_dict
from aitune.torch.module.proxy import ModuleProxy, new_proxy
from aitune.torch.module.recording_module import RecordedGraph, RecordingForward, RecordingModule
from aitune.torch.module.registry import module_registry
from aitune.torch.module.servable import Servable, TunedGraph
from aitune.torch.module.tensor_digests import TensorDigests
from aitune.torch.module.tuned_module import TunedModule
from aitune.utils.folder_names import folder_name

__all__ = ["Module", "ModuleState", "Strategies", "Tuner"]

logger = logging.getLogger(__name__)


class Module(ModuleProxy):
    """Stands in for a module: answers as it would, and can record its calls and be tuned.

    The module's own object is intercepted as well, so a parent or a pipeline that holds it needs no change. Wrapping
    a module again returns the wrapper that it has. A tuned module is for inference: its outputs carry no gradient.

    Args:
        module: The module to wrap; it is changed only in its instance ``__dict__``, until :meth:`unwrap`.
        name: Name in reports and files; by default the name of the class.
        strategy: Strategy for every graph of the module; without one the entry point chooses.
        strategies: Strategies by graph: a list in the order of the graphs, or a mapping by graph name.
        dynamic_shapes: Axes of the inputs by path; what is not named is found from the samples.

    Raises:
        AITuneUserInputError: ``module`` is no ``torch.nn.Module``, or another argument is not usable.
    """

    __slots__ = (
        "_before", "_interception", "_recording", "_signature", "_state", "_tuned", "dynamic_shapes",
        "graph_errors", "name", "strategies", "strategy",
    )  # fmt: skip
    name: str
    strategy: Tuner | None
    strategies: Strategies | None
    dynamic_shapes: DynamicShapes
    graph_errors: Mapping[str, AITuneError]
    """Why graphs could not be tuned the last time, by their names."""
    _signature: ForwardSignature
    _interception: Interception
    _state: ModuleState
    _recording: RecordingModule | None
    _tuned: TunedModule | None
    _before: tuple[ModuleState, TunedModule | None] | None

    def __new__(cls, module: torch.nn.Module, *args: Any, **kwargs: Any) -> Module:
        """Return the wrapper of a module: the one that it has, or a new one."""
        if isinstance(module, Module):
            return module
        if not isinstance(module, torch.nn.Module):
            raise AITuneUserInputError(
                f"ait.Module wraps a torch.nn.Module, got a {type(module).__qualname__}; "
                f"for a pipeline wrap the modules inside it"
            )
        existing = module_registry().wrapper_of(module)
        wrapper = existing if existing is not None else new_proxy(cls, module)
        assert isinstance(wrapper, Module)
        return wrapper

    def __init__(
        self,
        module: torch.nn.Module,
        name: str | None = None,
        strategy: Tuner | None = None,
        strategies: Strategies | None = None,
        dynamic_shapes: DynamicShapes | None = None,
    ) -> None:
        if name is not None and (not isinstance(name, str) or not name.strip()):
            raise AITuneUserInputError(f"name must be a non-empty string, got {name!r}")
        check_tuners(strategy, strategies)
        declared = check_dynamic_shapes(dynamic_shapes)
        known = hasattr(self, "_interception")
        if not known:
            self._first_init(module, name)
        if not known or strategy is not None or strategies is not None:
            self.strategy, self.strategies = strategy, strategies
        if not known or dynamic_shapes is not None:
            self.dynamic_shapes = declared
        if known and name is not None and name != self.name:
            self.name = name
            module_registry().add(name, self._original, self)

    def _first_init(self, module: torch.nn.Module, name: str | None) -> None:
        self.name = name or module_registry().unused_name(type(module).__name__)
        self._signature = ForwardSignature.from_callable(module.forward)
        self._interception = Interception(module)
        # The module keeps its wrapper alive: a pipeline may hold the module and nobody the wrapper.
        self._interception.wrapper = self
        self._state = ModuleState.INIT
        self._recording = self._tuned = self._before = None
        self.graph_errors = {}
        module_registry().add(self.name, module, self)

    # -- what it knows ---------------------------------------------------------------------------------------------

    @property
    def state(self) -> ModuleState:
        """What a call does now."""
        return self._state

    @property
    def module(self) -> Any:
        """What answers calls now: the original module, the recording one, or the tuned one."""
        if self._state is ModuleState.RECORDING:
            return self._recording
        return self._tuned if self._state is ModuleState.TUNED else self._original

    @property
    def original(self) -> torch.nn.Module:
        """The module that is wrapped."""
        return self._original

    @property
    def forward_signature(self) -> ForwardSignature:
        """How the forward of the wrapped module is called: its parameters by name and kind."""
        return self._signature

    @property
    def device(self) -> torch.device:
        """Device of the first parameter or buffer; the CPU for a module without any."""
        tensors = itertools.chain(self._original.parameters(), self._original.buffers())
        return next((tensor.device for tensor in tensors), torch.device("cpu"))

    @property
    def cache_dir(self) -> Path:
        """Folder for this module's builds."""
        return config.resolve_cache_dir() / folder_name(self.name)

    @property
    def graph_specs(self) -> list[GraphSpec]:
        """The graphs recorded so far, or the tuned ones."""
        if self._recording is not None:
            return [graph.spec for graph in self.recorded_graphs()]
        return [graph.spec for graph in self._tuned.graphs] if self._tuned is not None else []

    def recorded_graphs(self) -> list[RecordedGraph]:
        """Return the graphs recorded so far with their samples, empty when nothing was recorded."""
        return [] if self._recording is None else self._recording.graphs(self.dynamic_shapes)

    @property
    def recording_problems(self) -> list[str]:
        """What was seen while recording and could not be captured."""
        return [] if self._recording is None else list(self._recording.problems)

    def stats(self) -> CallStatistics:
        """Return how many calls the chosen backends served and how many fell back, and why, since tuning."""
        return CallStatistics({}, {}) if self._tuned is None else self._tuned.stats()

    # -- states ----------------------------------------------------------------------------------------------------

    def enable_passthrough(self, force: bool = False) -> None:
        """Let calls run on the original module.

        Args:
            force: Also give up what was tuned.

        Raises:
            AITuneUserInputError: The module is tuned and ``force`` is not set.
        """
        self._leave_tuned(force, "enable_passthrough")
        self._end_recording()
        self._enter(ModuleState.PASSTHROUGH)

    def enable_recording(self, force: bool = False) -> None:
        """Let calls run on the original module and be recorded.

        Args:
            force: Also give up what was tuned.

        Raises:
            AITuneUserInputError: The module is tuned and ``force`` is not set.
        """
        before = self._before if self._recording is not None else (self._state, self._tuned)
        self._leave_tuned(force, "enable_recording")
        self._before, self.graph_errors = before, {}
        self._end_recording()
        folder = config.new_folder("samples", "recording-")
        self._recording = RecordingModule(
            self._interception.original_forward,
            self._signature,
            folder,
            max_num_samples_stored=config.max_num_samples_stored,
            max_graphs=config.max_graphs,
            strict=config.strict_mode,
            module=self._original,
        )
        self._enter(ModuleState.RECORDING)

    def activate(self) -> None:
        """Let calls run on what was tuned.

        Raises:
            AITuneUserInputError: Nothing was tuned.
        """
        if self._tuned is None:
            raise AITuneUserInputError(
                f"{self.name} is {self._state.value}: nothing was tuned yet; call ait.tune first"
            )
        for graph in self._tuned.graphs:
            if not graph.backend.is_active:
                graph.backend.activate()
        self._enter(ModuleState.TUNED)

    def deactivate(self) -> None:
        """Let calls run on the original module and free what the backends loaded; :meth:`activate` undoes it."""
        self._enter(ModuleState.PASSTHROUGH)
        for graph in self._tuned.graphs if self._tuned is not None else ():
            if graph.backend.is_active:
                graph.backend.deactivate()

    def refresh(self) -> str | None:
        """Compare the values of all weights with those that the backends were built with, at once.

        When all are as they were, the backends serve again, for example after the same checkpoint was loaded again.

        Returns:
            Name of a weight that changed, so that the original module runs; ``None`` when there is none.
        """
        return None if self._tuned is None else self._tuned.refresh()

    def unwrap(self) -> torch.nn.Module:
        """Return the module as it was before it was wrapped, with nothing of aitune left on it."""
        self._end_recording()
        self._tuned = self._before = None
        self._state = ModuleState.PASSTHROUGH
        self._interception.remove()
        module_registry().remove(self.name, self._original)
        return self._original

    def cancel_recording(self) -> None:
        """Drop what was recorded and go back to what calls did before, unless it is tuned by now."""
        self._end_recording()
        if self._before is not None:
            (state, self._tuned), self._before = self._before, None
            self._enter(state)

    @contextmanager
    def unchanged_on_error(self) -> Iterator[None]:
        """Put state and tuned backends back as they are now when the block ends with an exception."""
        state, tuned = self._state, self._tuned
        try:
            yield
        except BaseException:
            self._end_recording()
            self._tuned = tuned
            self._enter(state if state is not ModuleState.RECORDING else ModuleState.PASSTHROUGH)
            raise

    def _leave_tuned(self, force: bool, action: str) -> None:
        if self._tuned is not None and not force:
            raise AITuneUserInputError(
                f"{self.name} is tuned; {action}(force=True) gives that up, ait.tune(..., retune=True) replaces it"
            )
        self._tuned = None

    def _end_recording(self) -> None:
        if self._recording is not None:
            self._recording.discard()
            self._recording = None

    def _enter(self, state: ModuleState) -> None:
        if state is ModuleState.TUNED and self._tuned is not None:
            self._interception.redirect(self._tuned.forward)
        elif state is ModuleState.RECORDING and self._recording is not None:
            self._interception.redirect(RecordingForward(self._interception, self._recording))
        else:
            self._interception.pass_through()
        self._state = state

    # -- tuning ----------------------------------------------------------------------------------------------------

    def tune(
        self,
        device: torch.device | str | None = None,
        strategy: Tuner | None = None,
        dry_run: bool = False,
    ) -> None:
        """Tune every recorded graph; afterwards calls run on what was chosen.

        A graph that cannot be tuned runs on the original module, with a warning, as long as another one can.

        Args:
            device: Device to tune for; by default the module's own.
            strategy: Strategy for graphs that have none of their own.
            dry_run: Only say what would be tried; calls do afterwards what they did before they were recorded.

        Raises:
            AITuneUserInputError: Nothing was recorded, there is no strategy, or the module is on another device.
            AITuneError: No graph could be tuned; it is the error of the first one.
        """
        if self._recording is None:
            raise AITuneUserInputError(f"{self.name}: nothing was recorded; call enable_recording and run the module")
        device = device_to_tune_for(self.name, self.device, device)
        graphs = self.recorded_graphs()
        if not graphs:
            problems = "; ".join(self._recording.problems)
            raise AITuneUserInputError(f"{self.name}: no call was recorded{': ' + problems if problems else ''}")
        with self.unchanged_on_error():
            self._interception.pass_through()
            if hooked := submodules_with_hooks(self._original):
                logger.warning(
                    "%s: the forward hooks of %s take part in the answers only; what else they do is lost in a backend "
                    "that compiles",
                    self.name,
                    ", ".join(hooked),
                )
            view = self._interception.plain_view()
            chosen = self.strategy or strategy
            tuning = GraphTuning(view, self.name, device, self.cache_dir, chosen, self.strategies)
            self.graph_errors = tuning.errors
            tuned = tuning.tune(graphs, dry_run)
            if dry_run:
                self.cancel_recording()
            else:
                self._serve(tuned)

    def _serve(self, graphs: Sequence[TunedGraph], digests: TensorDigests | None = None) -> None:
        self._tuned = TunedModule(
            self._interception, self._signature, graphs, config.on_unknown_input, config.weight_check_interval, digests
        )
        self._end_recording()
        # What served before is let go of, with the memory that it holds.
        self._before = None
        self._enter(ModuleState.TUNED)

    # -- data ------------------------------------------------------------------------------------------------------

    def to_dict(self) -> dict[str, Any]:
        """Return the tuned graphs as plain data, with artifact paths for files.

        Raises:
            AITuneUserInputError: Nothing was tuned.
        """
        if self._tuned is None:
            raise AITuneUserInputError(f"{self.name} is not tuned: there is nothing to store; call ait.tune first")
        return {
            "name": self.name,
            "graphs": [
                {"graph_spec": graph_spec_to_dict(graph.spec), "backend": graph.backend.to_dict()}
                for graph in self._tuned.graphs
            ],
        }

    @classmethod
    def from_dict(
        cls,
        module: torch.nn.Module,
        state: Mapping[str, Any],
        device: torch.device | str | None = None,
        *,
        restore: Callable[[torch.nn.Module, dict[str, Any]], Servable],
        digests: TensorDigests | None = None,
    ) -> Module:
        """Wrap a module and let it run on stored backends.

        Args:
            module: A module of the class, and with the weights, that was tuned.
            state: What :meth:`to_dict` gave.
            device: Device to serve on; by default the one each backend was built for.
            restore: Makes a backend from its stored form.
            digests: Hashes of the module's weights that are known already.
        """
        wrapper = cls(module, state["name"])
        view = wrapper._interception.plain_view()
        graphs = []
        for entry in state["graphs"]:
            spec = graph_spec_from_dict(entry["graph_spec"])
            backend = restore(as_function(view, spec), entry["backend"])
            backend.deploy(device)
            graphs.append(TunedGraph(spec, backend))
        wrapper._serve(graphs, digests)
        return wrapper
