"""An artifact to tuned modules: each build is checked against the machine before anything of it is touched."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

import msgspec
import torch

from aitune.artifact.fit import MachineAbilities, this_machine, why_unfit
from aitune.artifact.graph_record import GraphRecord
from aitune.artifact.manifest import BackendRecord, ModuleRecord, TunedGraphRecord
from aitune.artifact.reading import Artifact, DamagedError
from aitune.exceptions import AITuneEnvironmentError, AITuneError, ArtifactError
from aitune.torch.backend.backend import Backend
from aitune.torch.backend.registry import registry
from aitune.torch.checkpoint.container_classes import prepare_containers
from aitune.torch.checkpoint.module_weights import first_difference
from aitune.torch.checkpoint.places import module_at
from aitune.torch.checkpoint.plain_state import state_from_plain
from aitune.torch.checkpoint.requirements import devices_here
from aitune.torch.checkpoint.standalone import absent_module
from aitune.torch.checkpoint.tuned_weights import TunedWeights, when_raised
from aitune.torch.checkpoint.unpacking_folder import UnpackingFolder
from aitune.torch.module.eval_mode import eval_mode
from aitune.torch.module.forward_signature import ForwardSignature
from aitune.torch.module.graph_spec import GraphSpec
from aitune.torch.module.plain_data import graph_spec_from_dict
from aitune.torch.module.registry import module_registry
from aitune.torch.module.wrapper_module import Module

logger = logging.getLogger(__name__)

DeviceMap = Mapping[str, "torch.device | str"]


@dataclass(frozen=True)
class UnpackingOptions:
    """How a file is loaded.

    Args:
        verify: ``"full"`` checks every member, ``"lazy"`` only those that are used, always before they are.
        allow_native_code: Whether machine code in the file may be run.
        strict: Whether a build that does not fit is an error, rather than a reason to take the next one.
        devices: Device by name of the module; the key ``""`` stands for all others.
    """

    verify: Literal["full", "lazy"] = "full"
    allow_native_code: bool = True
    strict: bool = False
    devices: DeviceMap = field(default_factory=dict)

    def device_of(self, module: str) -> torch.device | str | None:
        """Return the device that a module shall be served on; ``None`` leaves each build where it was."""
        return self.devices.get(module, self.devices.get(""))


def unpack(artifact: Artifact, root: Any, options: UnpackingOptions) -> dict[str, Module]:
    """Let modules run on what a file holds for them.

    Args:
        artifact: The opened file.
        root: What was saved: a module or a pipeline, with its original modules; ``None`` does without them.
        options: How it is loaded.

    Returns:
        The tuned modules by name. When an error is raised, every module is as it was before.

    Raises:
        ArtifactError: The file is damaged, or does not belong to the modules.
        AITuneEnvironmentError: With ``strict``: a build does not fit this machine.
    """
    manifest = artifact.manifest
    graphs = [graph for module in manifest.modules for graph in module.all_graphs]
    try:
        prepare_containers(manifest.containers, graphs)
        specs = {graph: graph_spec_from_dict(_plain(graph)) for graph in graphs}
    except ArtifactError as error:
        raise ArtifactError(f"{artifact.path} cannot be used: {error.message}") from error
    unknown = sorted(set(options.devices) - {module.name for module in manifest.modules} - {""})
    if unknown:
        known = ", ".join(module.name for module in manifest.modules)
        raise ArtifactError(f"device_map names {unknown[0]!r}, which is not in {artifact.path}; it holds {known}")
    with _unused_members_checked(artifact, options) as finish_check:
        loader = _Loader(artifact, options, this_machine(devices_here()), specs)
        return loader.load_all(root, finish_check)


def _plain(graph: GraphRecord) -> dict[str, Any]:
    plain: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(graph))
    return plain


@contextmanager
def _unused_members_checked(artifact: Artifact, options: UnpackingOptions) -> Iterator[Callable[[], None]]:
    """Check the members that are probably not used while the others are loaded.

    Gives a function that returns once every member was checked, and raises when one is damaged.
    """
    if options.verify == "lazy":
        yield lambda: None
        return
    unused = [
        file
        for module in artifact.manifest.modules
        for graph in module.graphs
        for backend in graph.backends[1:]
        for file in backend.files
    ]
    if not unused:
        yield artifact.verify
        return
    with ThreadPoolExecutor(1) as pool:
        checked = pool.submit(artifact.verify, unused)

        def finish() -> None:
            checked.result()
            artifact.verify()

        yield finish


@dataclass(frozen=True)
class _Loader:
    artifact: Artifact
    options: UnpackingOptions
    machine: MachineAbilities
    specs: Mapping[GraphRecord, GraphSpec]

    def load_all(self, root: Any, finish_check: Callable[[], None]) -> dict[str, Module]:
        records = self.artifact.manifest.modules
        originals = [None if root is None else _unwrapped(module_at(root, record.place)) for record in records]
        for record, original in zip(records, originals, strict=True):
            if original is not None:
                self._check_architecture(record, original)
        with ExitStack() as on_error:
            loaded = {
                record.name: self._load_module(record, original, on_error)
                for record, original in zip(records, originals, strict=True)
            }
            finish_check()
        return loaded

    # -- the module ------------------------------------------------------------------------------------------------

    def _check_architecture(self, record: ModuleRecord, original: torch.nn.Module) -> None:
        difference = first_difference(record.tensors, original)
        if difference is not None:
            raise ArtifactError(
                f"{self.artifact.path} was saved from another architecture ({record.class_name}) than the "
                f"{type(original).__qualname__} given for {record.name!r}: {difference}"
            )
        here = _parameters(original)
        if here != record.graphs[0].graph.signature.parameters:
            raise ArtifactError(
                f"{self.artifact.path} was saved from a module whose forward takes other parameters than that of the "
                f"{type(original).__qualname__} given for {record.name!r}: {here[0] + here[3]}, expected "
                f"{record.graphs[0].graph.signature.positional + record.graphs[0].graph.signature.keyword_only}"
            )

    def _load_module(self, record: ModuleRecord, original: torch.nn.Module | None, on_error: ExitStack) -> Module:
        module = original
        if module is None:
            module = absent_module(record.name, [self.specs[tuned.graph] for tuned in record.graphs])
        wrapper = module_registry().wrapper_of(module)
        if wrapper is None:
            wrapper = Module(module, module_registry().unused_name(record.name))
            on_error.push(when_raised(wrapper.unwrap))
        else:
            on_error.enter_context(wrapper.unchanged_on_error())
        weights = TunedWeights(self.artifact, record, original)
        weights.bring(on_error)
        state = {
            "name": wrapper.name,
            "graphs": [{"graph_spec": _plain(tuned.graph), "backend": {"record": tuned}} for tuned in record.graphs],
        }

        def restore(view: torch.nn.Module, entry: dict[str, Any]) -> Backend:
            backend = self._restore_best(record, entry["record"], None if original is None else view, weights)
            # Nothing serves before it is known that the module would answer with the same weights.
            weights.require_same()
            return backend

        if module.training:
            logger.warning(
                "%s is in training mode, in which its calls run on the original: call its eval() before inference",
                record.name,
            )
        try:
            # Eval mode is what was tuned, and so what a change of the mode is judged against.
            with eval_mode(module):
                return Module.from_dict(module, state, restore=restore, digests=weights.digests)
        except (AITuneError, MemoryError):
            raise
        except Exception as error:
            # Whatever a file says that nobody thought of.
            raise ArtifactError(
                f"{self.artifact.path} describes a graph of {record.name!r} that cannot be served: "
                f"{type(error).__name__}: {error}"
            ) from error

    # -- the builds ------------------------------------------------------------------------------------------------

    def _restore_best(
        self, record: ModuleRecord, tuned: TunedGraphRecord, view: torch.nn.Module | None, weights: TunedWeights
    ) -> Backend:
        failures: list[tuple[BackendRecord, AITuneError]] = []
        for build in tuned.backends[: 1 if self.options.strict else None]:
            try:
                backend = self._restore(tuned, build, view, self.options.device_of(record.name), weights)
            except DamagedError:
                raise
            except AITuneError as error:
                failures.append((build, error))
                continue
            if failures:
                logger.warning(
                    "%s %s runs on %s, not on the better build: %s",
                    record.name, tuned.graph.name, build.description, _listed(failures),
                )  # fmt: skip
            return backend
        said = f"{record.name} {tuned.graph.name}: {_listed(failures)}"
        if self.options.strict or view is None:
            advice = "load without strict=True" if view is not None else "give ait.load the original module"
            raise AITuneEnvironmentError(
                f"{self.artifact.path} holds no build that can be used here for {said}; {advice}, or tune on this "
                f"machine"
            ) from failures[0][1]
        logger.warning("%s; the original module runs such calls", said)
        return self._original(tuned, view)

    def _restore(
        self,
        tuned: TunedGraphRecord,
        build: BackendRecord,
        view: torch.nn.Module | None,
        device: torch.device | str | None,
        weights: TunedWeights,
    ) -> Backend:
        """Make a build ready to serve; nothing of its files is read before it is known to fit."""
        reason = self._why_not(build, view, device)
        if reason is not None:
            raise AITuneEnvironmentError(reason)
        folder = UnpackingFolder()
        try:
            self.artifact.extract(build.files, folder.path)
            # Extracting has both cores busy, most runtimes load with one.
            weights.start_comparing()
            state = state_from_plain(build.state, folder.path)
            state["backend"] = build.name
            state["graph_spec"] = _plain(build.graph if build.graph is not None else tuned.graph)
            if device is not None:
                state["device"] = str(device)
            backend = _activated(view, state)
            _check_equal_symbols(backend)
        except BaseException:
            folder.remove()
            raise
        folder.keep_for(backend)
        return backend

    def _why_not(
        self, build: BackendRecord, view: torch.nn.Module | None, device: torch.device | str | None
    ) -> str | None:
        backend_class = registry.load(build.name)
        if view is None and (build.needs_module or backend_class.needs_original_module):
            return "it needs the original module, which was not given"
        # The class is asked too: it is its code that would load the build, whatever the file says.
        if (build.native_code or backend_class.native_code) and not self.options.allow_native_code:
            return "it is machine code, which allow_native_code=False forbids"
        if device is not None and torch.device(device).type != build.requirements.device_type:
            return f"it was built for {build.requirements.device_type} and cannot serve on {device}"
        return why_unfit(build.requirements, self.machine)

    @staticmethod
    def _original(tuned: TunedGraphRecord, view: torch.nn.Module) -> Backend:
        device = next((tensor.device for tensor in (*view.parameters(), *view.buffers())), "cpu")
        state = {
            "backend": "TorchEager",
            "config": {},
            "graph_spec": _plain(tuned.graph),
            "device": str(device),
        }
        return _activated(view, state)


def _activated(view: torch.nn.Module | None, state: dict[str, Any]) -> Backend:
    try:
        backend = registry.restore(view, state)
        backend.activate()
    except AITuneError:
        raise
    except Exception as error:
        raise ArtifactError(f"{state['backend']} cannot load its build: {type(error).__name__}: {error}") from error
    return backend


def _check_equal_symbols(backend: Backend) -> None:
    known = backend.graph_spec.symbols
    names = [name for group in backend.equal_symbols for name in group]
    if not all(isinstance(name, str) and name in known for name in names):
        raise ArtifactError(
            f"{backend.name}: its build takes the sizes {names} for one, the graph has {', '.join(known) or 'none'}"
        )


def _parameters(module: torch.nn.Module) -> tuple[Any, ...]:
    wrapper = module_registry().wrapper_of(module)
    # The forward of a wrapped module is a stand-in.
    signature = ForwardSignature.from_callable(module.forward) if wrapper is None else wrapper._signature
    return (
        signature.positional,
        signature.num_positional_only,
        signature.var_positional,
        signature.keyword_only,
        signature.var_keyword,
    )


def _unwrapped(module: torch.nn.Module) -> torch.nn.Module:
    return module.original if issubclass(type(module), Module) else module  # type: ignore[return-value]


def _listed(failures: Sequence[tuple[BackendRecord, AITuneError]]) -> str:
    return "; ".join(f"{build.description}: {error}" for build, error in failures)
