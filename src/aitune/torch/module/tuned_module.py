"""Runs each call of a tuned module on the backend chosen for its graph, or on the original module."""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import torch

from aitune.exceptions import AITuneUserInputError, UnsupportedCallError
from aitune.torch.module.call_statistics import CallCounters, CallStatistics
from aitune.torch.module.forward_signature import ForwardSignature
from aitune.torch.module.graph_spec import GraphSpec
from aitune.torch.module.guard_source import NoGuardError, guard_source, mismatch, parameter_list
from aitune.torch.module.interception import InterceptedForward, Interception
from aitune.torch.module.sample_metadata import Constant, SampleMetadata
from aitune.torch.module.weight_watch import WeightWatch

logger = logging.getLogger(__name__)

FALLBACK_CAUSES = (
    "outside the tuned graphs",
    "training mode",
    "autocast",
    "gradients",
    "weights changed",
    "error",
    "traced",
)
_OUTSIDE, _TRAINING, _AUTOCAST, _GRADIENTS, _WEIGHTS, _ERROR, _TRACED = range(len(FALLBACK_CAUSES))


class Servable(Protocol):
    """What the tuned module needs of a backend.

    A backend that also has ``run_tensors(tensors)`` is called with the flat list of input tensors.
    """

    @property
    def runs_original(self) -> bool:
        """Whether a call may as well go straight to the original module."""

    @property
    def follows_weights(self) -> bool:
        """Whether a change of the module's weights shows in the answers."""

    @property
    def equal_symbols(self) -> Sequence[Sequence[str]]:
        """Groups of symbols of the graph that must have the same value."""

    def infer(self, *args: Any, **kwargs: Any) -> Any:
        """Run one call."""

    @property
    def is_active(self) -> bool:
        """Whether it can be run now."""

    def activate(self) -> None:
        """Load what is needed to run."""

    def deactivate(self) -> None:
        """Free what was loaded."""

    def deploy(self, device: torch.device | str | None = None) -> None:
        """Become ready to serve for good."""

    def to_dict(self) -> dict[str, Any]:
        """Return what it can be made from again."""

    def describe(self) -> str:
        """Return a short text for people."""


@dataclass(frozen=True)
class TunedGraph:
    """One graph and what serves it.

    Args:
        spec: The graph.
        backend: What was chosen for it.
    """

    spec: GraphSpec
    backend: Servable


class TunedModule:
    """The tuned state of a module.

    Args:
        interception: The hold on the original module.
        signature: How its forward is called.
        graphs: The tuned graphs.
        on_unknown_input: What happens to a call that no graph covers.
    """

    def __init__(
        self,
        interception: Interception,
        signature: ForwardSignature,
        graphs: Sequence[TunedGraph],
        on_unknown_input: Literal["eager", "error"] = "eager",
    ) -> None:
        self._interception = interception
        self._signature = signature
        self.graphs = tuple(graphs)
        self._on_unknown_input = on_unknown_input
        self._watch = WeightWatch(interception.module)
        self._counters = CallCounters([*(f"graph:{number}" for number in range(len(self.graphs))), *FALLBACK_CAUSES])
        self._warned: set[int] = set()
        self._warn_lock = threading.Lock()
        self._unwritten: list[int] = []
        self.forward = self._make_forward()

    @property
    def backends(self) -> Mapping[SampleMetadata, Servable]:
        """The backend of each graph by its input spec."""
        return {graph.spec.input_spec: graph.backend for graph in self.graphs}

    @property
    def module(self) -> torch.nn.Module:
        """The module whose forward this is."""
        return self._interception.module

    def stats(self) -> CallStatistics:
        """Return how many calls were served and how many fell back, and why."""
        counts = self._counters.read()
        served = {graph.spec.name: counts[f"graph:{number}"] for number, graph in enumerate(self.graphs)}
        return CallStatistics(served, {cause: counts[cause] for cause in FALLBACK_CAUSES if counts[cause]})

    def refresh(self) -> None:
        """Accept the weights as they are now; for backends that hold weights of their own, tune again instead."""
        self._watch.refresh()

    # -- the generated forward -------------------------------------------------------------------------------------

    def _make_forward(self) -> InterceptedForward:
        names: dict[str, Any] = {
            "_absent": _ABSENT,
            "_Tensor": torch.Tensor,
            "_Parameter": torch.nn.Parameter,
            "_strided": torch.strided,
            "_constant_key": _constant_key,
            "_module": self._interception.module,
            "_counts": self._counters.local,
            "_is_compiling": torch.compiler.is_compiling,
            "_tracing_state": torch._C._get_tracing_state,
            "_grad_enabled": torch.is_grad_enabled,
            "_autocast_enabled": torch.is_autocast_enabled,
            "_changed": self._watch.changed,
            "_failed": self._note_failure,
            "_fall_back": self._fall_back,
            "_match": self._match_through_pytree,
        }
        try:
            source = self._source(names)
        except NoGuardError:
            self._unwritten = list(range(len(self.graphs)))
            source = "def forward(_aitune_self, /, *args, **kwargs):\n    return _match((), args, {}, kwargs)\n"
        exec(compile(source, f"<aitune guard of {type(self._interception.module).__qualname__}>", "exec"), names)
        function = names["forward"]
        original = getattr(self._interception.original_forward, "__qualname__", "forward")
        # So that a wrong call raises the original's own message.
        function.__qualname__ = original
        forward_class = type("TunedForward", (InterceptedForward,), {"__call__": function})
        forward: InterceptedForward = forward_class(self._interception)
        return forward

    def _source(self, names: dict[str, Any]) -> str:
        signature = self._signature
        call = (
            f"({', '.join(f'{name},' for name in signature.positional).replace(',,', ',')}), "
            f"{signature.var_positional or '_aitune_extra'}, "
            f"{{{', '.join(f'{name!r}: {name}' for name in signature.keyword_only)}}}, "
            f"{signature.var_keyword or '_aitune_unknown'}"
        )
        device_types = {spec.device for graph in self.graphs for spec in graph.spec.input_spec.tensor_specs} or {"cpu"}
        autocast = " or ".join(
            f"_autocast_enabled({device!r}) is not {torch.is_autocast_enabled(device)}"
            for device in sorted(device_types)
        )
        lines = [
            f"def forward({parameter_list(signature)}):",
            "    if _is_compiling() or _tracing_state() is not None:",
            f"        return _fall_back({_TRACED}, {call})",
            "    if _module.training:",
            f"        return _fall_back({_TRAINING}, {call})",
            f"    if {autocast}:",
            f"        return _fall_back({_AUTOCAST}, {call})",
            "    _aitune_grad = _grad_enabled()",
        ]
        for number, graph in enumerate(self.graphs):
            lines += self._graph_lines(number, graph, call, names)
        lines.append(f"    return {'_match(' if self._unwritten else f'_fall_back({_OUTSIDE}, '}{call})")
        return "\n".join(lines) + "\n"

    def _graph_lines(self, number: int, graph: TunedGraph, call: str, names: dict[str, Any]) -> list[str]:
        try:
            guard = guard_source(graph.spec, number, graph.backend.equal_symbols)
        except NoGuardError:
            self._unwritten.append(number)
            return []
        names.update(guard.constants)
        lines = [f"    if {guard.condition}:"]
        if graph.backend.runs_original:
            names[f"_run{number}"] = self._interception.original_forward
            lines += [
                f"        _counts.values[{number}] += 1",
                f"        return _run{number}({self._arguments(graph.spec)})",
            ]
            return lines
        if guard.tensors:
            requires_grad = " or ".join(f"{tensor}.requires_grad" for tensor in guard.tensors)
            lines += [
                f"        if _aitune_grad and ({requires_grad}):",
                f"            return _fall_back({_GRADIENTS}, {call})",
            ]
        if not graph.backend.follows_weights:
            lines += ["        if _changed() is not None:", f"            return _fall_back({_WEIGHTS}, {call})"]
        flat = getattr(graph.backend, "run_tensors", None)
        names[f"_run{number}"] = flat or graph.backend.infer
        arguments = f"[{', '.join(guard.tensors)}]" if flat else self._arguments(graph.spec)
        lines += [
            "        try:",
            f"            _aitune_output = _run{number}({arguments})",
            "        except Exception as _aitune_error:",
            f"            _failed({number}, _aitune_error)",
            f"            return _fall_back({_ERROR}, {call})",
            f"        _counts.values[{number}] += 1",
            "        return _aitune_output",
        ]
        return lines

    def _arguments(self, spec: GraphSpec) -> str:
        """Write the canonical call of a graph."""
        signature = self._signature
        given = [str(name) for name in spec.input_spec.structure.context]
        written = []
        by_position = True
        for name in signature.positional:
            by_position = by_position and name in given
            if name in given:
                written.append(name if by_position else f"{name}={name}")
        if signature.var_positional in given:
            written.append(f"*{signature.var_positional}")
        written += [f"{name}={name}" for name in signature.keyword_only if name in given]
        written.append(f"**{signature.var_keyword or '_aitune_unknown'}")
        return ", ".join(written)

    # -- off the fast path -----------------------------------------------------------------------------------------

    def _match_through_pytree(
        self, positional: tuple[Any, ...], extra: tuple[Any, ...], keyword_only: dict[str, Any], more: dict[str, Any]
    ) -> Any:
        args, kwargs = _given(self._signature, positional, extra, keyword_only, more)
        cause = _OUTSIDE
        try:
            metadata = SampleMetadata.from_inputs(
                self._signature.bind(args, kwargs), strict=self.graphs[0].spec.input_spec.strict
            )
        except UnsupportedCallError:
            return self._fall_back(cause, positional, extra, keyword_only, more)
        for number in self._unwritten:
            graph = self.graphs[number]
            if mismatch(metadata, graph.spec, graph.backend.equal_symbols) is None:
                state = self._state_cause(graph, args, kwargs)
                if state is None:
                    return self._serve(number, args, kwargs)
                cause = state
                break
        return self._fall_back(cause, positional, extra, keyword_only, more)

    def _state_cause(self, graph: TunedGraph, args: tuple[Any, ...], kwargs: dict[str, Any]) -> int | None:
        if self._interception.module.training:
            return _TRAINING
        tensors = graph.spec.input_tensors(args, kwargs)
        if not graph.backend.runs_original:
            if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors):
                return _GRADIENTS
            if not graph.backend.follows_weights and self._watch.changed() is not None:
                return _WEIGHTS
        return None

    def _serve(self, number: int, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        backend = self.graphs[number].backend
        forward = self._interception.original_forward if backend.runs_original else backend.infer
        try:
            output = forward(*args, **kwargs)
        except Exception as error:
            if backend.runs_original:
                raise
            self._note_failure(number, error)
            return self._fall_back(_ERROR, (), args, {}, kwargs)
        self._counters.local.values[number] += 1
        return output

    def _fall_back(
        self,
        cause: int,
        positional: tuple[Any, ...],
        extra: tuple[Any, ...],
        keyword_only: dict[str, Any],
        more: dict[str, Any],
    ) -> Any:
        args, kwargs = _given(self._signature, positional, extra, keyword_only, more)
        if cause != _TRACED:
            self._counters.local.values[len(self.graphs) + cause] += 1
            if cause == _OUTSIDE and self._on_unknown_input == "error":
                raise AITuneUserInputError(self._explain(cause, args, kwargs))
            if cause not in self._warned:
                self._warn(cause, args, kwargs)
        return self._interception.original_forward(*args, **kwargs)

    def _warn(self, cause: int, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        with self._warn_lock:
            if cause in self._warned:
                return
            self._warned.add(cause)
        if cause != _ERROR:
            logger.warning("%s; the original module runs such calls", self._explain(cause, args, kwargs))

    def _explain(self, cause: int, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
        who = type(self._interception.module).__name__
        if cause == _WEIGHTS:
            return f"{who}: {self._watch.changed()} is no longer the weight it was tuned with; tune again (retune=True)"
        if cause == _OUTSIDE:
            try:
                metadata = SampleMetadata.from_inputs(self._signature.bind(args, kwargs), strict=True)
            except UnsupportedCallError as error:
                return f"{who}: a call is outside the tuned graphs: {error}"
            reasons = [mismatch(metadata, graph.spec, graph.backend.equal_symbols) for graph in self.graphs]
            return f"{who}: a call is outside the tuned graphs: {'; '.join(reason for reason in reasons if reason)}"
        return (
            f"{who}: called in {FALLBACK_CAUSES[cause]}"
            if cause == _TRAINING
            else f"{who}: called with {FALLBACK_CAUSES[cause]}"
        )

    def _note_failure(self, number: int, error: Exception) -> None:
        with self._warn_lock:
            first = _ERROR not in self._warned
            self._warned.add(_ERROR)
        if first:
            logger.warning(
                "%s failed while it served; the original module answers such calls",
                self.graphs[number].backend.describe(),
                exc_info=error,
            )


class _Absent:
    def __repr__(self) -> str:
        return "<absent>"


_ABSENT = _Absent()


def _constant_key(value: Any) -> tuple[str, str]:
    return Constant((), value).key


def _given(
    signature: ForwardSignature,
    positional: tuple[Any, ...],
    extra: tuple[Any, ...],
    keyword_only: Mapping[str, Any],
    more: Mapping[str, Any],
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Put a call together again from the parameters of the generated function."""
    count = len(positional)
    for number, value in enumerate(positional):
        if value is _ABSENT:
            count = number
            break
    args = positional[:count] + tuple(extra)
    kwargs = {
        name: value
        for name, value in zip(signature.positional[count:], positional[count:], strict=False)
        if value is not _ABSENT
    }
    kwargs.update((name, value) for name, value in keyword_only.items() if value is not _ABSENT)
    kwargs.update(more)
    return args, kwargs
