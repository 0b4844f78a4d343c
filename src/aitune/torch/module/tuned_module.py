"""Runs each call of a tuned module on the backend chosen for its graph, or on the original module."""

from __future__ import annotations

import functools
import logging
import threading
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import torch

from aitune.exceptions import AITuneUserInputError, UnsupportedCallError
from aitune.torch.module.call_statistics import CallCounters, CallStatistics
from aitune.torch.module.changed_arguments import ReturningArguments, is_given_twice, put_back
from aitune.torch.module.dispatch_source import (
    ERROR,
    FALLBACK_CAUSES,
    GRADIENTS,
    HOOKS,
    OUTSIDE,
    TRACED,
    WEIGHTS,
    write_dispatch,
)
from aitune.torch.module.forward_signature import ForwardSignature
from aitune.torch.module.graph_match import mismatch
from aitune.torch.module.guard_source import ABSENT
from aitune.torch.module.hook_watch import HookWatch
from aitune.torch.module.interception import InterceptedForward, Interception
from aitune.torch.module.sample_metadata import SampleMetadata
from aitune.torch.module.servable import Servable, TunedGraph
from aitune.torch.module.tensor_digests import TensorDigests
from aitune.torch.module.weight_watch import WeightWatch

__all__ = ["FALLBACK_CAUSES", "Servable", "TunedGraph", "TunedModule"]

logger = logging.getLogger(__name__)


class TunedModule:
    """The tuned state of a module.

    Args:
        interception: The hold on the original module.
        signature: How its forward is called.
        graphs: The tuned graphs.
        on_unknown_input: What happens to a call that no graph covers.
        weight_check_interval: Seconds from one comparison of the weights' values to the next; ``None`` never compares
            them, only objects, version counters and addresses.
        digests: Hashes of weights that are known already.
    """

    def __init__(
        self,
        interception: Interception,
        signature: ForwardSignature,
        graphs: Sequence[TunedGraph],
        on_unknown_input: Literal["eager", "error"] = "eager",
        weight_check_interval: float | None = None,
        digests: TensorDigests | None = None,
    ) -> None:
        self._interception = interception
        self._signature = signature
        self.graphs = tuple(graphs)
        self._on_unknown_input = on_unknown_input
        holds_weights = any(not (g.backend.follows_weights or g.backend.runs_original) for g in self.graphs)
        self._weights = WeightWatch(interception.module, weight_check_interval if holds_weights else None, digests)
        self._hooks = HookWatch(interception.module)
        self._counters = CallCounters([*(f"graph:{number}" for number in range(len(self.graphs))), *FALLBACK_CAUSES])
        self._warned: set[int] = set()
        self._warn_lock = threading.Lock()
        self._unwritten: tuple[int, ...] = ()
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

    def refresh(self) -> str | None:
        """Compare the values of all weights with those that the backends hold, at once.

        Returns:
            Name of a weight that changed, so that the original runs; ``None`` when all are as they were.
        """
        return self._weights.refresh()

    # -- the written forward ---------------------------------------------------------------------------------------

    def _make_forward(self) -> InterceptedForward:
        written = write_dispatch(self._signature, self.graphs, not self._weights.is_empty)
        self._unwritten = written.unwritten
        names = {
            **written.objects,
            "_aitune_module": self._interception.module,
            "_aitune_counts": self._counters.local,
            "_aitune_weights_changed": self._weights.changed,
            "_aitune_hooks": self._hooks,
            "_aitune_failed": self._note_failure,
            "_aitune_fall_back": self._fall_back,
            "_aitune_match": self._match_through_pytree,
            **{f"_aitune_run{number}": self._runner(graph) for number, graph in enumerate(self.graphs)},
        }
        code = compile(written.text, f"<aitune forward of {type(self._interception.module).__qualname__}>", "exec")
        exec(code, names)
        function = names["forward"]
        if self._signature.indirect:
            return _IndirectForward(self._interception, functools.partial(function, None), self._fall_back)
        # So that a call with one argument given twice raises the original's own message.
        function.__qualname__ = getattr(self._interception.original_forward, "__qualname__", "forward")
        forward_class = type("TunedForward", (InterceptedForward,), {"__call__": function})
        forward: InterceptedForward = forward_class(self._interception)
        return forward

    def _runner(self, graph: TunedGraph) -> Any:
        if graph.backend.runs_original:
            return self._interception.original_forward
        return getattr(graph.backend, "run_tensors", graph.backend.infer)

    # -- off the fast path -----------------------------------------------------------------------------------------

    def _match_through_pytree(
        self, positional: tuple[Any, ...], extra: tuple[Any, ...], keyword_only: dict[str, Any], more: dict[str, Any]
    ) -> Any:
        """Find the graph of a call among those that have no written guard."""
        given = _Given(self._signature, positional, extra, keyword_only, more)
        cause = OUTSIDE
        number = self._matching(given)
        if number is not None:
            state = self._state_cause(self.graphs[number], given)
            if state is None:
                return self._serve(number, given)
            cause = state
        return self._fall_back(cause, positional, extra, keyword_only, more)

    def _matching(self, given: _Given) -> int | None:
        try:
            named = self._signature.bind(given.args, given.kwargs)
            metadata = SampleMetadata.from_inputs(named, strict=self.graphs[0].spec.input_spec.strict)
            if any(tensor.is_neg() or tensor.is_conj() for tensor in metadata.tensors_of(named)):
                return None
        except UnsupportedCallError:
            return None
        for number in self._unwritten:
            graph = self.graphs[number]
            if mismatch(metadata, graph.spec, graph.backend.equal_symbols) is None:
                return None if is_given_twice(graph.spec.changed_arguments, named) else number
        return None

    def _state_cause(self, graph: TunedGraph, given: _Given) -> int | None:
        if graph.backend.runs_original:
            return None
        if torch.is_grad_enabled() and any(t.requires_grad for t in graph.spec.input_tensors(given.args, given.kwargs)):
            return GRADIENTS
        if self._hooks.added() is not None:
            return HOOKS
        return None if graph.backend.follows_weights or self._weights.changed() is None else WEIGHTS

    def _serve(self, number: int, given: _Given) -> Any:
        backend = self.graphs[number].backend
        if backend.runs_original:
            self._counters.local.values[number] += 1
            return self._run_original(given)
        try:
            output = backend.infer(*given.args, **given.kwargs)
        except Exception as error:
            self._note_failure(number, error)
            self._counters.local.values[len(self.graphs) + ERROR] += 1
            return self._run_original(given)
        self._counters.local.values[number] += 1
        if self.graphs[number].spec.changed_arguments and not isinstance(self.module, ReturningArguments):
            return put_back(output, self._signature.bind(given.args, given.kwargs))
        return output

    def _run_original(self, given: _Given) -> Any:
        if self._signature.indirect:
            return ABSENT
        return self._interception.original_forward(*given.args, **given.kwargs)

    def _fall_back(
        self,
        cause: int,
        positional: tuple[Any, ...],
        extra: tuple[Any, ...],
        keyword_only: dict[str, Any],
        more: dict[str, Any],
    ) -> Any:
        """Run the original, or say to the caller that it has to."""
        given = _Given(self._signature, positional, extra, keyword_only, more)
        if cause != TRACED:
            self._counters.local.values[len(self.graphs) + cause] += 1
            if cause == OUTSIDE and self._on_unknown_input == "error":
                raise AITuneUserInputError(self._explain(cause, given))
            if cause not in self._warned:
                self._warn(cause, given)
        return self._run_original(given)

    def _warn(self, cause: int, given: _Given) -> None:
        with self._warn_lock:
            if cause in self._warned:
                return
            self._warned.add(cause)
        if cause != ERROR:
            logger.warning("%s; the original module runs such calls", self._explain(cause, given))

    def _explain(self, cause: int, given: _Given) -> str:
        who = type(self._interception.module).__name__
        if cause == WEIGHTS:
            return (
                f"{who}: {self._weights.changed()} is no longer what it was tuned with; put it back, or tune again "
                f"(retune=True)"
            )
        if cause == HOOKS:
            return f"{who}: {self._hooks.added()} has a forward hook that it had not when it was tuned"
        if cause != OUTSIDE:
            return f"{who}: called {'in' if cause == _TRAINING_MODE else 'with'} {FALLBACK_CAUSES[cause]}"
        try:
            metadata = SampleMetadata.from_inputs(self._signature.bind(given.args, given.kwargs), strict=True)
            reasons = [mismatch(metadata, graph.spec, graph.backend.equal_symbols) for graph in self.graphs]
        except Exception as error:
            # The call may be wrong in any way, and what is wrong with it is for the original to say.
            reasons = [str(error)]
        said = "; ".join(reason for reason in reasons if reason)
        return f"{who}: a call is outside the tuned graphs: {said or _UNSEEN_REASONS}"

    def _note_failure(self, number: int, error: Exception) -> None:
        with self._warn_lock:
            first = ERROR not in self._warned
            self._warned.add(ERROR)
        if first:
            logger.warning(
                "%s failed while it served; the original module answers such calls",
                self.graphs[number].backend.describe(),
                exc_info=error,
            )


# What metadata of a call does not show.
_UNSEEN_REASONS = "a tensor is a lazy negative or conjugate, or two arguments are one object that the forward changes"
_TRAINING_MODE = FALLBACK_CAUSES.index("training mode")


class _Given:
    """A call, put together again from the parameters of the written function."""

    __slots__ = ("args", "kwargs")

    def __init__(
        self,
        signature: ForwardSignature,
        positional: tuple[Any, ...],
        extra: tuple[Any, ...],
        keyword_only: Mapping[str, Any],
        more: Mapping[str, Any],
    ) -> None:
        count = len(positional)
        for number, value in enumerate(positional):
            if value is ABSENT:
                count = number
                break
        self.args = positional[:count] + tuple(extra)
        kwargs = {
            name: value
            for name, value in zip(signature.positional[count:], positional[count:], strict=False)
            if value is not ABSENT
        }
        kwargs.update((name, value) for name, value in keyword_only.items() if value is not ABSENT)
        kwargs.update(more)
        self.kwargs = kwargs


class _IndirectForward(InterceptedForward):
    """For an original that may look at how its arguments are given: it gets them as they were."""

    def __init__(self, interception: Interception, dispatch: Any, fall_back: Any) -> None:
        super().__init__(interception)
        self._dispatch = dispatch
        self._fall_back = fall_back

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling():
            return self.interception.original_forward(*args, **kwargs)
        try:
            output = self._dispatch(*args, **kwargs)
        except TypeError:
            # One argument was given twice: nothing else in the written function raises it.
            output = self._fall_back(OUTSIDE, (), args, {}, kwargs)
        return self.interception.original_forward(*args, **kwargs) if output is ABSENT else output
