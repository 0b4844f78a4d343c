"""Tuned modules to an artifact: what is stored of each, and the files of their builds."""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import torch

from aitune import __version__
from aitune.artifact.graph_record import GraphRecord
from aitune.artifact.manifest import (
    FORMAT,
    FORMAT_VERSION,
    BackendRecord,
    FileRecord,
    Manifest,
    ModuleRecord,
    TunedGraphRecord,
    format_place,
)
from aitune.artifact.writing import ArtifactWriter
from aitune.exceptions import AITuneUserInputError, ArtifactError
from aitune.torch.backend.backend import Backend
from aitune.torch.backend.registry import registry
from aitune.torch.checkpoint.container_classes import containers_of
from aitune.torch.checkpoint.evidence_records import evidence_of
from aitune.torch.checkpoint.module_weights import describe_tensors, save_weights
from aitune.torch.checkpoint.places import FoundModule, find_wrapped
from aitune.torch.checkpoint.plain_state import artifact_paths_in, state_to_plain
from aitune.torch.checkpoint.requirements import describe_environment, requirements_of
from aitune.torch.checkpoint.shared_weights import SharedWeights
from aitune.torch.module.plain_data import graph_spec_to_dict
from aitune.torch.module.servable import TunedGraph
from aitune.torch.module.tuned_module import TunedModule
from aitune.torch.module.wrapper_module import ModuleState
from aitune.torch.task.alternatives import alternatives_of
from aitune.torch.task.outcome import GraphReport


@dataclass(frozen=True)
class PackingOptions:
    """What goes into a file beside the chosen backends.

    Args:
        keep_alternatives: Builds kept for each graph, for machines that the chosen one does not fit.
        include_original_weights: Whether the modules' own parameters and buffers are stored.
    """

    keep_alternatives: int = 1
    include_original_weights: bool = False


def pack(root: Any, writer: ArtifactWriter, scratch: Path, options: PackingOptions) -> Manifest:
    """Describe the tuned modules in an object, and add their files to a writer.

    Args:
        root: A tuned module, or a pipeline that holds some.
        writer: Takes the files.
        scratch: Empty folder for files that are made on the way; needed until everything is written.
        options: What else goes in.

    Raises:
        AITuneUserInputError: There is no tuned module in it.
        ArtifactError: Something of it cannot be stored.
    """
    found = tuned_modules_in(root)
    modules = [_pack_module(each, writer, scratch / str(number), options) for number, each in enumerate(found)]
    graphs = [graph for module in modules for graph in module.all_graphs]
    return Manifest(
        format=FORMAT,
        version=FORMAT_VERSION,
        created=datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        aitune=__version__,
        environment=describe_environment(),
        members=writer.members,
        modules=tuple(modules),
        containers=tuple(containers_of(graphs)),
    )


def tuned_modules_in(root: Any) -> list[FoundModule]:
    """Find the tuned modules in an object.

    Args:
        root: A tuned module, or a pipeline that holds some.

    Raises:
        AITuneUserInputError: There is none.
    """
    wrapped = find_wrapped(root)
    tuned = [each for each in wrapped if each.wrapper.state is ModuleState.TUNED]
    if not tuned:
        states = ", ".join(f"{each.wrapper.name} ({each.wrapper.state.value})" for each in wrapped)
        raise AITuneUserInputError(
            f"there is no tuned module in the {type(root).__qualname__} given, so there is nothing to save; wrapped "
            f"modules in it: {states or 'none'}; call ait.tune first, and give the module or the object that holds it"
        )
    return tuned


def _pack_module(found: FoundModule, writer: ArtifactWriter, scratch: Path, options: PackingOptions) -> ModuleRecord:
    wrapper = found.wrapper
    tuned: TunedModule = wrapper.module
    store = _Store(writer, SharedWeights(wrapper.original))
    try:
        packed = [_pack_graph(graph, store) for graph in tuned.graphs]
        # After all of those that serve: what is stored first is stored in one piece, and loads fastest.
        graphs = tuple(
            _with_alternatives(record, graph, store, options.keep_alternatives)
            for record, graph in zip(packed, tuned.graphs, strict=True)
        )
    except ArtifactError as error:
        raise ArtifactError(
            f"{wrapper.name} at {format_place(found.place)} cannot be saved: {error.message}"
        ) from error
    weights: FileRecord | None = None
    if options.include_original_weights:
        scratch.mkdir(parents=True)
        weights_file = save_weights(wrapper.original, scratch)
        weights = store.add_file(weights_file, weights_file.name)
    holds_weights = any(backend.holds_weights for graph in graphs for backend in graph.backends)
    return ModuleRecord(
        name=wrapper.name,
        class_name=f"{type(wrapper.original).__module__}.{type(wrapper.original).__qualname__}",
        place=found.place,
        tensors=describe_tensors(wrapper.original, with_values=holds_weights or weights is not None),
        graphs=graphs,
        weights=weights,
    )


@dataclass(frozen=True)
class _Store:
    writer: ArtifactWriter
    weights: SharedWeights

    def add_file(self, source: Path, path: str) -> FileRecord:
        return self.weights.add_file(self.writer, source, path)


def _pack_graph(graph: TunedGraph, store: _Store) -> TunedGraphRecord:
    record = _graph_record(graph_spec_to_dict(graph.spec))
    backend: Any = graph.backend
    report: GraphReport | None = getattr(backend, "tuning_report", None)
    return TunedGraphRecord(
        graph=record,
        backends=(_pack_backend(_Build.of_backend(backend), record, store),),
        evidence=None if report is None else evidence_of(report),
    )


def _with_alternatives(record: TunedGraphRecord, graph: TunedGraph, store: _Store, number: int) -> TunedGraphRecord:
    report: GraphReport | None = getattr(graph.backend, "tuning_report", None)
    outcomes = [] if report is None else alternatives_of(report, number)
    builds = [_Build(each.backend, each.key, each.description, each.state or {}) for each in outcomes]
    # A build may be gone with the run that made it; then it is no alternative any more.
    there = [build for build in builds if all(path.path.exists() for path in artifact_paths_in(build.state))]
    more = tuple(_pack_backend(build, record.graph, store) for build in there)
    return msgspec.structs.replace(record, backends=record.backends + more)


@dataclass(frozen=True)
class _Build:
    name: str
    key: str
    description: str
    state: Mapping[str, Any]

    @classmethod
    def of_backend(cls, backend: Backend) -> _Build:
        return cls(backend.name, backend.key(), backend.describe(), backend.to_dict())


def _pack_backend(build: _Build, graph: GraphRecord, store: _Store) -> BackendRecord:
    backend_class = _class_of(build.name)
    own_graph = _graph_record(build.state["graph_spec"]) if "graph_spec" in build.state else graph
    device = torch.device(str(build.state.get("device", "cpu")))
    return BackendRecord(
        name=build.name,
        key=build.key,
        description=build.description,
        state=state_to_plain({name: value for name, value in build.state.items() if name != "graph_spec"}),
        graph=None if own_graph == graph else own_graph,
        files=tuple(_pack_files(build.state, store)),
        native_code=backend_class.native_code,
        needs_module=backend_class.needs_original_module,
        # What gives precision away was judged with these weights, also where it is made again from the module.
        holds_weights=backend_class.recovery == "artifact" or not backend_class.is_exact,
        requirements=requirements_of(backend_class.native_code, device),
    )


def _class_of(name: str) -> type[Backend]:
    try:
        return registry.load(name)
    except AITuneUserInputError as error:
        raise ArtifactError(
            f"backend {name} is not registered, so nobody could load it again; register it: "
            f"aitune.torch.backend.registry.register(BackendEntry({name!r}, 'package.module:Class'))"
        ) from error


def _graph_record(plain: Mapping[str, Any]) -> GraphRecord:
    try:
        # Through JSON: what is checked is what will be read.
        return msgspec.json.decode(msgspec.json.encode(plain), type=GraphRecord)
    except (msgspec.MsgspecError, TypeError, ValueError, OverflowError, RecursionError) as error:
        raise ArtifactError(f"graph {plain.get('name')!r} has no stored form: {error}") from error


def _pack_files(state: Mapping[str, Any], store: _Store) -> list[FileRecord]:
    files: dict[str, FileRecord] = {}
    for artifact in artifact_paths_in(state):
        found = _files_below(artifact.path, artifact.relative_path.as_posix())
        gone = set(artifact.files).difference(path for _, path in found)
        if gone or not found:
            raise _missing(artifact.root / min(gone) if gone else artifact.path)
        for source, path in found:
            files[path] = store.add_file(source, path)
    return list(files.values())


def _files_below(source: Path, path: str) -> Sequence[tuple[Path, str]]:
    if source.is_symlink():
        raise ArtifactError(f"{source}, which belongs to the build, is a link, expected a file or a folder")
    if not source.exists():
        raise _missing(source)
    if source.is_file():
        return [(source, path)]
    children = sorted(source.iterdir(), key=lambda child: child.name)
    prefix = "" if path == "." else f"{path}/"
    return [pair for child in children for pair in _files_below(child, f"{prefix}{child.name}")]


def _missing(path: Path) -> ArtifactError:
    return ArtifactError(
        f"{path}, which belongs to the build, is not there any more: was the cache cleared? tune again"
    )
