"""Runs the original module, keeps samples of its calls and folds them into graph specs."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from aitune.exceptions import AITuneUserInputError, UnsupportedCallError
from aitune.torch.dynamic_shapes import DynamicShapes
from aitune.torch.module.axis_evidence import explain_axes
from aitune.torch.module.axis_inference import Observation, infer_input_axes, infer_output_axes
from aitune.torch.module.changed_arguments import (
    Contents,
    can_be_put_back,
    changed_arguments,
    contents_of,
    with_arguments,
)
from aitune.torch.module.container_access import caches_of_leaves
from aitune.torch.module.forward_signature import ForwardSignature
from aitune.torch.module.graph_spec import GraphSpec
from aitune.torch.module.interception import InterceptedForward, Interception
from aitune.torch.module.locator import Locator, format_locator
from aitune.torch.module.output_aliases import describe_shared_outputs
from aitune.torch.module.sample import Sample
from aitune.torch.module.sample_metadata import SampleMetadata
from aitune.torch.module.sample_store import SampleStore
from aitune.torch.module.tensor_spec import TensorSpec
from aitune.utils.error_text import error_line
from aitune.utils.process_folder import ProcessFolder

__all__ = ["RecordedGraph", "RecordingForward", "RecordingModule", "Sample", "recorded_batch_size"]

_current_batch_size: ContextVar[int | None] = ContextVar("aitune_current_batch_size", default=None)


@contextmanager
def recorded_batch_size(batch_size: int | None) -> Iterator[None]:
    """Say how many samples the calls inside the ``with`` block hold."""
    token = _current_batch_size.set(batch_size)
    try:
        yield
    finally:
        _current_batch_size.reset(token)


@dataclass(frozen=True)
class RecordedGraph:
    """One graph with the calls that were kept of it.

    Args:
        spec: The graph.
        samples: Its calls.
        num_calls: How many calls of it were seen.
        problem: Why it cannot be tuned, if so.
    """

    spec: GraphSpec
    samples: SampleStore
    num_calls: int
    problem: str | None = None


@dataclass
class _GraphRecord:
    signature: ForwardSignature
    input_spec: SampleMetadata
    output_spec: SampleMetadata
    samples: SampleStore
    observations: dict[Observation, None] = field(default_factory=dict)
    changed_arguments: tuple[str, ...] = ()
    num_calls: int = 0
    problem: str | None = None


@dataclass(frozen=True)
class _BegunCall:
    record: _GraphRecord
    input_spec: SampleMetadata
    named: dict[str, Any]
    before: Contents


class RecordingModule:
    """Records every call of a module while it runs on the original.

    Args:
        forward: The original forward, bound.
        signature: How it is called.
        folder: Folder for samples, of this recording alone; one of the process is let go of with the last of them.
        max_num_samples_stored: Most samples kept for one graph.
        max_graphs: Most graphs; calls of further kinds run unrecorded.
        strict: Whether non-tensor arguments are part of a graph's identity.
        module: The module, to know an output that is one of its weights.
    """

    def __init__(
        self,
        forward: Callable[..., Any],
        signature: ForwardSignature,
        folder: Path | ProcessFolder,
        *,
        max_num_samples_stored: int = 8,
        max_graphs: int = 16,
        strict: bool = True,
        module: torch.nn.Module | None = None,
    ) -> None:
        self._module = module
        self._forward = forward
        self._signature = signature
        self._folder = folder.path if isinstance(folder, ProcessFolder) else folder
        self._lease = folder if isinstance(folder, ProcessFolder) else None
        self._max_num_samples_stored = max_num_samples_stored
        self._max_graphs = max_graphs
        self._strict = strict
        self._lock = threading.Lock()
        self._records: dict[SampleMetadata, _GraphRecord] = {}
        self.problems: list[str] = []
        self.num_calls = 0
        # For calls in threads, which a context variable does not reach.
        self.batch_size: int | None = None

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        """Run the original and take note of the call; what cannot be noted never stops the call."""
        with self._lock:
            self.num_calls += 1
        begun = self._begin(args, kwargs)
        output = self._forward(*args, **kwargs)
        if begun is not None:
            self._end(begun, output)
        return output

    def _begin(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> _BegunCall | None:
        try:
            named = self._signature.bind(args, kwargs)
            input_spec = SampleMetadata.from_inputs(named, strict=self._strict)
            record = self._record_for(named, input_spec, self._signature.in_style_of(kwargs))
            before = contents_of(named)
        except UnsupportedCallError as error:
            self._note(str(error))
            return None
        except Exception as error:
            # The disk may be full, and arguments may be anything.
            self._note(f"a call cannot be kept, so nothing is tuned from it: {error_line(error)}")
            return None
        return None if record is None else _BegunCall(record, input_spec, named, before)

    def _end(self, begun: _BegunCall, output: Any) -> None:
        record, named = begun.record, begun.named
        try:
            changed = changed_arguments(begun.before, named)
            is_first = not record.num_calls
            self._observe(record, begun.input_spec, output, {name: named[name] for name in changed})
            if is_first:
                self._note_shared_outputs(output, {name: named[name] for name in named if name not in changed})
            self._require_to_be_put_back(record, changed, named)
        except Exception as error:
            with self._lock:
                record.problem = (
                    f"what a call gave cannot be described: {error_line(error)}; such calls run on the original module"
                )

    def _require_to_be_put_back(self, record: _GraphRecord, changed: tuple[str, ...], named: dict[str, Any]) -> None:
        """Note a forward that puts other values into arguments of which only their class knows how to hold them."""
        for name in changed:
            if not can_be_put_back(named[name]):
                kind = f"{type(named[name]).__module__}.{type(named[name]).__qualname__}"
                with self._lock:
                    record.problem = (
                        f"the forward puts other values into argument {name} while it runs, as a key-value cache is "
                        f"filled, and a {kind} cannot be given what a backend computes, so such calls run on the "
                        f"original module"
                    )

    def _note_shared_outputs(self, output: Any, inputs: dict[str, Any]) -> None:
        try:
            said = describe_shared_outputs(output, inputs, self._module)
        except Exception:
            # An output may be anything; what cannot be taken apart is said when it is observed.
            return
        if said is not None:
            self._note(said)

    def _note(self, problem: str) -> None:
        with self._lock:
            if problem not in self.problems:
                self.problems.append(problem)

    def _record_for(
        self, named: dict[str, Any], input_spec: SampleMetadata, signature: ForwardSignature
    ) -> _GraphRecord | None:
        shapes = _shapes(input_spec)
        with self._lock:
            record = self._records.get(input_spec)
            if record is None:
                if len(self._records) >= self._max_graphs:
                    problem = (
                        f"more than {self._max_graphs} kinds of calls: further ones run on the original"
                        f"{self._culprit(input_spec)}"
                    )
                    if problem not in self.problems:
                        self.problems.append(problem)
                    return None
                folder = self._folder / f"graph{len(self._records)}"
                store = SampleStore(folder, signature, self._max_num_samples_stored, self._lease)
                record = _GraphRecord(signature, input_spec, input_spec, store)
                self._records[input_spec] = record
            # Written before the call, so that a forward that changes its inputs does not change the sample.
            if record.samples.wants(shapes):
                record.samples.add(named, input_spec)
        return record

    def _culprit(self, input_spec: SampleMetadata) -> str:
        """Name the argument that has a different constant in every graph, if there is one."""
        values: dict[Locator, set[Any]] = {}
        for metadata in (*self._records, input_spec):
            for constant in metadata.constants:
                values.setdefault(constant.locator, set()).add(constant.key)
        locator, seen = max(values.items(), key=lambda item: len(item[1]), default=((), set[Any]()))
        return f"; argument {format_locator(locator)} alone had {len(seen)} values" if len(seen) > 1 else ""

    def _observe(self, record: _GraphRecord, input_spec: SampleMetadata, output: Any, changed: dict[str, Any]) -> None:
        try:
            output_spec = SampleMetadata.from_outputs(output, strict=True)
            if changed:
                output_spec = SampleMetadata.from_outputs(with_arguments(output, changed), strict=True)
        except UnsupportedCallError as error:
            with self._lock:
                record.problem = str(error)
                record.num_calls += 1
            return
        said = _current_batch_size.get()
        batch_size = self.batch_size if said is None else said
        observation = Observation(batch_size, _shapes(input_spec), _shapes(output_spec))
        with self._lock:
            record.num_calls += 1
            if not record.observations:
                record.output_spec, record.changed_arguments = output_spec, tuple(changed)
            elif record.output_spec != output_spec:
                record.problem = (
                    f"the output changes its kind from call to call: {record.output_spec.describe()} "
                    f"and {output_spec.describe()}"
                )
                return
            record.observations[observation] = None

    def graphs(self, dynamic_shapes: DynamicShapes | None = None) -> list[RecordedGraph]:
        """Fold what was recorded into graphs, in the order in which they were first met.

        Args:
            dynamic_shapes: What the user said about axes; a path counts for every graph that has it.

        Raises:
            AITuneUserInputError: ``dynamic_shapes`` does not fit what was recorded.
        """
        declared = dict(dynamic_shapes or {})
        with self._lock:
            records = [record for record in self._records.values() if record.observations or record.problem]
        self._check_paths(declared, records)
        return [self._graph(number, record, declared) for number, record in enumerate(records)]

    def _check_paths(self, declared: DynamicShapes, records: list[_GraphRecord]) -> None:
        known = {spec.locator for record in records for spec in record.input_spec.tensor_specs}
        for path in declared:
            if records and _locator_of(path) not in known:
                names = ", ".join(sorted(map(repr, known)))
                raise AITuneUserInputError(f"dynamic_shapes: no recorded call has a tensor at {path!r}; seen: {names}")

    def _graph(self, number: int, record: _GraphRecord, declared: DynamicShapes) -> RecordedGraph:
        locators = {spec.locator for spec in record.input_spec.tensor_specs}
        own = {path: dims for path, dims in declared.items() if _locator_of(path) in locators}
        input_spec, output_spec = record.input_spec, record.output_spec
        evidence: tuple[str, ...] = ()
        if record.observations:
            observations = list(record.observations)
            caches = caches_of_leaves(input_spec.structure)
            of_tensors = [c for c, leaf in zip(caches, input_spec.leaves, strict=True) if isinstance(leaf, TensorSpec)]
            input_axes = infer_input_axes(input_spec.tensor_specs, observations, own, of_tensors)
            output_axes = infer_output_axes(output_spec.tensor_specs, observations, input_axes)
            input_spec, output_spec = input_spec.with_axes(input_axes), output_spec.with_axes(output_axes)
            named = [dim.name for dims in own.values() for dim in dims if not isinstance(dim, int)]
            evidence = explain_axes(input_spec.tensor_specs, observations, named)
        name, changed = f"graph{number}", record.changed_arguments
        spec = GraphSpec(name, input_spec, output_spec, record.signature, own, evidence, changed)
        return RecordedGraph(spec, record.samples, record.num_calls, record.problem)

    def discard(self) -> None:
        """Remove every sample from the disk."""
        for record in self._records.values():
            record.samples.discard()
        shutil.rmtree(self._folder, ignore_errors=True)
        if self._lease is not None:
            self._lease.remove()


class RecordingForward(InterceptedForward):
    """Stands in for a module's forward while its calls are recorded.

    Args:
        interception: The hold on the module.
        recording: What records.
    """

    def __init__(self, interception: Interception, recording: RecordingModule) -> None:
        super().__init__(interception)
        self._recording = recording

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        """Run the original and record the call."""
        return self._recording(*args, **kwargs)


def _shapes(metadata: SampleMetadata) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(axis.size for axis in spec.axes) for spec in metadata.tensor_specs)


def _locator_of(path: str | tuple[str | int, ...]) -> tuple[str | int, ...]:
    return (path,) if isinstance(path, str) else tuple(path)
