"""Writes the forward of a tuned module: it finds the graph of a call, and runs what was chosen for it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.autograd import forward_ad
from torch.utils.hooks import RemovableHandle

from aitune.torch.module.decision_tree import Branch, decision_lines
from aitune.torch.module.default_device import CPU, default_device
from aitune.torch.module.forward_signature import ForwardSignature
from aitune.torch.module.graph_spec import GraphSpec
from aitune.torch.module.guard_source import (
    Guard,
    NoGuardError,
    SourceNames,
    extra_keywords,
    extra_positional,
    guard_source,
    parameter_list,
)
from aitune.torch.module.servable import TunedGraph

FALLBACK_CAUSES = (
    "outside the tuned graphs",
    "training mode",
    "autocast",
    "gradients",
    "weights changed",
    "hooks on submodules",
    "error",
    "another default dtype",
    "a torch function mode",
    "traced",
)
"""Why a call ran on the original module."""
OUTSIDE, TRAINING, AUTOCAST, GRADIENTS, WEIGHTS, HOOKS, ERROR, DTYPE, MODE, TRACED = range(len(FALLBACK_CAUSES))


@dataclass(frozen=True)
class DispatchSource:
    """The source of a function named ``forward`` that takes a call of the module.

    What the function refers to beside :attr:`objects` its user has to provide: ``_aitune_module``, ``_aitune_counts``
    (per thread, with ``values``), ``_aitune_weights_changed()``, ``_aitune_hooks``, ``_aitune_failed(graph, error)``,
    ``_aitune_fall_back(cause, ...)``, ``_aitune_match(...)``, and for each graph ``_aitune_run<number>``, which takes
    the list of tensors where its backend has ``run_tensors``. Where the signature is indirect, falling back returns
    ``_aitune_absent``, and the caller runs the original with the arguments as given.

    Args:
        text: The source.
        objects: What it refers to, by name.
        unwritten: Numbers of the graphs that have no written guard; ``_aitune_match`` looks for them.
    """

    text: str
    objects: dict[str, Any]
    unwritten: tuple[int, ...]


def write_dispatch(
    signature: ForwardSignature, graphs: Sequence[TunedGraph], has_weights: bool = True
) -> DispatchSource:
    """Write the forward of a tuned module.

    Args:
        signature: How the original forward is called.
        graphs: The tuned graphs.
        has_weights: Whether the module has any that could change.
    """
    return _Writer(signature, graphs, has_weights).write()


@dataclass
class _Writer:
    signature: ForwardSignature
    graphs: Sequence[TunedGraph]
    has_weights: bool
    names: SourceNames = field(default_factory=SourceNames)
    unwritten: list[int] = field(default_factory=list)

    def write(self) -> DispatchSource:
        try:
            parameters = parameter_list(self.signature)
            call = self._call()
            branches = [branch for number in range(len(self.graphs)) for branch in self._branches(number, call)]
        except NoGuardError:
            parameters, call, branches = "_aitune_self, /, *args, **kwargs", "(), args, {}, kwargs", []
            self.unwritten = list(range(len(self.graphs)))
        miss = f"_aitune_match({call})" if self.unwritten else f"_aitune_fall_back({OUTSIDE}, {call})"
        lines = [
            f"def forward({parameters}):",
            *self._state_lines(call),
            *decision_lines(branches),
            f"    return {miss}",
        ]
        return DispatchSource("\n".join(lines) + "\n", self.names.objects, tuple(self.unwritten))

    def _call(self) -> str:
        """Write the parameters as the last four arguments of ``_aitune_fall_back``."""
        signature = self.signature
        return (
            f"({''.join(f'{name}, ' for name in signature.positional)}), {extra_positional(signature)}, "
            f"{{{', '.join(f'{name!r}: {name}' for name in signature.keyword_only)}}}, {extra_keywords(signature)}"
        )

    def _state_lines(self, call: str) -> list[str]:
        self.names.objects.update(
            _aitune_is_compiling=torch.compiler.is_compiling,
            _aitune_tracing_state=torch._C._get_tracing_state,
            _aitune_modes=torch._C._len_torch_dispatch_stack,
            _aitune_transforms=torch._C._functorch.maybe_current_level,
            _aitune_forward_ad=forward_ad,
            _aitune_any_autocast=torch._C._is_any_autocast_enabled,
            _aitune_autocast_enabled=torch.is_autocast_enabled,
            _aitune_autocast_dtype=torch.get_autocast_dtype,
            _aitune_grad_enabled=torch.is_grad_enabled,
            _aitune_default_dtype=torch.get_default_dtype,
            _aitune_function_modes=torch._C._len_torch_function_stack,
            _aitune_Handle=RemovableHandle,
        )
        traced = (
            "_aitune_is_compiling() or _aitune_tracing_state() is not None or _aitune_modes() "
            "or _aitune_transforms() is not None or _aitune_forward_ad._current_level >= 0"
        )
        conditions = [
            (traced, TRACED),
            ("_aitune_module.training", TRAINING),
            (self._other_autocast(), AUTOCAST),
            (f"_aitune_default_dtype() is not {self.names.object(torch.get_default_dtype())}", DTYPE),
            (self._other_function_mode(), MODE),
        ]
        return [
            line
            for condition, cause in conditions
            for line in (f"    if {condition}:", f"        return _aitune_fall_back({cause}, {call})")
        ]

    def _other_autocast(self) -> str:
        """Write the condition under which autocast is not as it is now."""
        devices = {spec.device for graph in self.graphs for spec in graph.spec.input_spec.tensor_specs} or {"cpu"}
        different = []
        enabled = False
        for device in sorted(devices):
            if torch.is_autocast_enabled(device):
                enabled = True
                dtype = self.names.object(torch.get_autocast_dtype(device))
                different.append(
                    f"not _aitune_autocast_enabled({device!r}) or _aitune_autocast_dtype({device!r}) is not {dtype}"
                )
            else:
                different.append(f"_aitune_autocast_enabled({device!r})")
        condition = " or ".join(different)
        return condition if enabled else f"_aitune_any_autocast() and ({condition})"

    def _other_function_mode(self) -> str:
        """Write the condition under which torch functions do not do what they do now."""
        device = default_device()
        self.names.objects.update(_aitune_default_device=default_device)
        other = f"_aitune_default_device() != {self.names.object(device if device is not None else CPU)}"
        # Where there is no mode the default device is the CPU.
        return f"_aitune_function_modes() and {other}" if device in (None, CPU) else other

    def _branches(self, number: int, call: str) -> list[Branch]:
        """Write the branch of one graph; none where the graph has no written guard."""
        graph = self.graphs[number]
        if graph.spec.changed_arguments:
            self.unwritten.append(number)
            return []
        try:
            guard = guard_source(graph.spec, self.names, graph.backend.equal_symbols)
        except NoGuardError:
            self.unwritten.append(number)
            return []
        original = graph.backend.runs_original
        body = self._original_body(number, graph) if original else self._backend_body(number, graph, guard, call)
        return [Branch(guard.conditions, tuple(body))]

    def _original_body(self, number: int, graph: TunedGraph) -> list[str]:
        answer = "_aitune_absent" if self.signature.indirect else f"_aitune_run{number}({self._arguments(graph.spec)})"
        return [f"_aitune_counts.values[{number}] += 1", f"return {answer}"]

    def _backend_body(self, number: int, graph: TunedGraph, guard: Guard, call: str) -> list[str]:
        lines = []
        if guard.tensors:
            requires_grad = " or ".join(f"{tensor}.requires_grad" for tensor in guard.tensors)
            lines.append(f"if _aitune_grad_enabled() and ({requires_grad}):")
            lines.append(f"    return _aitune_fall_back({GRADIENTS}, {call})")
        lines.append("if _aitune_Handle.next_id != _aitune_hooks.last_handle and _aitune_hooks.added() is not None:")
        lines.append(f"    return _aitune_fall_back({HOOKS}, {call})")
        if self.has_weights and not graph.backend.follows_weights:
            lines.append("if _aitune_weights_changed() is not None:")
            lines.append(f"    return _aitune_fall_back({WEIGHTS}, {call})")
        flat = hasattr(graph.backend, "run_tensors")
        arguments = f"[{', '.join(guard.tensors)}]" if flat else self._arguments(graph.spec)
        return [
            *lines,
            "try:",
            f"    _aitune_output = _aitune_run{number}({arguments})",
            "except Exception as _aitune_error:",
            f"    _aitune_failed({number}, _aitune_error)",
            f"    return _aitune_fall_back({ERROR}, {call})",
            f"_aitune_counts.values[{number}] += 1",
            "return _aitune_output",
        ]

    def _arguments(self, spec: GraphSpec) -> str:
        """Write the call of a graph, with the arguments in the form in which they were recorded."""
        signature = spec.forward_signature
        given = [str(name) for name in spec.input_spec.structure.context]
        written = []
        by_position = True
        for name in signature.positional:
            by_position = by_position and name in given and name not in signature.by_name
            if name in given:
                written.append(name if by_position else f"{name}={name}")
        if signature.var_positional in given:
            written.append(f"*{signature.var_positional}")
        written += [f"{name}={name}" for name in signature.keyword_only if name in given]
        written.append(f"**{extra_keywords(signature)}")
        return ", ".join(written)
