"""The contract of a backend: one way of running a graph of a module."""

from __future__ import annotations

import copy
import enum
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal

import torch

from aitune.exceptions import AITuneError, BackendStateError, BuildError
from aitune.torch.module.graph_spec import GraphSpec
from aitune.torch.module.sample import Sample


class BackendState(enum.Enum):
    """Where a backend is in its life."""

    NEW = "new"
    BUILT = "built"
    ACTIVE = "active"
    DEPLOYED = "deployed"


_ALLOWED: dict[BackendState, tuple[str, ...]] = {
    BackendState.NEW: ("build",),
    BackendState.BUILT: ("activate", "deploy"),
    BackendState.ACTIVE: ("infer", "deactivate", "deploy"),
    BackendState.DEPLOYED: ("infer",),
}


class Backend(ABC):
    """One way of running a graph: build it once, then activate, infer and deactivate, at last deploy.

    A subclass implements the methods that begin with an underscore, :meth:`key`, :meth:`describe`, :meth:`to_dict` and
    :meth:`from_dict`, and states what it is in the class attributes. ``_infer`` may be called from several threads at
    once; everything else is called from one. A call out of order raises :class:`~aitune.exceptions.BackendStateError`.

    Attributes:
        device_types: Kinds of device that it can run on.
        is_exact: Whether it keeps the precision of the module; one that gives precision away says ``False``.
        needs_original_module: Whether it calls the original module when it runs.
        native_code: Whether its build is machine code that runs in the process which loads it.
        survives_bad_indices: Whether an id beyond its table gives an error or an answer; it may end the process else.
        recovery: How it comes back in another process: from its artifact, by compiling again, or from the module.
        required_packages: Packages that must be importable.
        extra: Extra of this distribution that installs them.
        runs_original: Whether a call may as well go straight to the original module.
        follows_weights: Whether a change of the module's weights shows in the answers.
        equal_symbols: Groups of symbols of the graph that the build took for one.
        notes: What a user should know of the build, such as "nothing was compiled".
        tuning_report: On a chosen backend the report of the run that chose it, for saving.
    """

    device_types: ClassVar[tuple[str, ...]] = ("cpu", "cuda")
    is_exact: bool = True
    needs_original_module: ClassVar[bool] = False
    native_code: ClassVar[bool] = False
    survives_bad_indices: ClassVar[bool] = False
    recovery: ClassVar[Literal["artifact", "compile", "module"]] = "artifact"
    required_packages: ClassVar[tuple[str, ...]] = ()
    extra: ClassVar[str | None] = None
    runs_original: bool = False
    follows_weights: bool = False
    equal_symbols: tuple[tuple[str, ...], ...] = ()
    notes: tuple[str, ...] = ()
    tuning_report: Any = None

    def __init__(self) -> None:
        self._lifecycle = BackendState.NEW
        self._device = torch.device("cpu")
        self._graph_spec: GraphSpec | None = None

    # -- what it is ------------------------------------------------------------------------------------------------

    @property
    def name(self) -> str:
        """Name in the registry, such as ``"ONNXRuntime"``."""
        return type(self).__name__.removesuffix("Backend")

    @property
    def is_jit(self) -> bool:
        """Whether it compiles while it runs, rather than ahead of time."""
        return False

    @property
    def device(self) -> torch.device:
        """Device that it was built for."""
        return self._device

    @property
    def is_active(self) -> bool:
        """Whether it can be run now."""
        return self._lifecycle in (BackendState.ACTIVE, BackendState.DEPLOYED)

    @property
    def graph_spec(self) -> GraphSpec:
        """The graph that it was built for.

        Raises:
            BackendStateError: It was not built yet.
        """
        if self._graph_spec is None:
            raise BackendStateError(f"{self.describe()} was not built yet; call build first", backend=self.describe())
        return self._graph_spec

    @abstractmethod
    def key(self) -> str:
        """Return name, configuration and versions as one string, the same in every process and fit for a folder."""

    @abstractmethod
    def describe(self) -> str:
        """Return a short text for people."""

    def can_run(self, module: torch.nn.Module, graph_spec: GraphSpec, device: torch.device) -> str | None:
        """Say why the graph cannot be run here, before anything is built; ``None`` when it can be tried.

        Args:
            module: The original module.
            graph_spec: The graph.
            device: Device to run on.
        """
        if device.type not in self.device_types:
            return f"runs on {', '.join(self.device_types)}, not on {device.type}"
        return None

    # -- life ------------------------------------------------------------------------------------------------------

    def fresh(self) -> Backend:
        """Return a copy with the same configuration that was never built."""
        fresh = copy.copy(self)
        fresh._lifecycle = BackendState.NEW
        fresh._graph_spec = None
        return fresh

    def build(
        self,
        module: torch.nn.Module,
        graph_spec: GraphSpec,
        data: Sequence[Sample],
        device: torch.device | str,
        cache_dir: str | Path,
    ) -> Backend:
        """Build for one graph.

        Args:
            module: The original module; it is not changed.
            graph_spec: The graph.
            data: Recorded calls of the graph, at least one.
            device: Device to run on.
            cache_dir: Folder for files; it exists and belongs to this build alone.

        Returns:
            The backend to go on with, built and inactive.

        Raises:
            BackendStateError: It was built before.
            BackendError: The module could not be exported, compiled or converted.
        """
        self._require("build")
        self._device = torch.device(device)
        self._graph_spec = graph_spec
        try:
            built = self._build(module, graph_spec, data, Path(cache_dir))
        except AITuneError:
            raise
        except Exception as error:
            raise BuildError(
                f"{self.describe()} could not be built: {type(error).__name__}: {error}",
                backend=self.describe(),
                graph=graph_spec.name,
            ) from error
        built._lifecycle = BackendState.BUILT
        return built

    def activate(self) -> None:
        """Load what is needed to run.

        Raises:
            BackendStateError: It is not built, or is active already.
        """
        self._require("activate")
        self._activate()
        self._lifecycle = BackendState.ACTIVE

    def infer(self, *args: Any, **kwargs: Any) -> Any:
        """Run one call of the graph and return what the original module would.

        Args:
            args: Positional arguments of the forward.
            kwargs: Keyword arguments of the forward.

        Raises:
            BackendStateError: It is not active.
        """
        if not self.is_active:
            self._require("infer")
        return self._infer(*args, **kwargs)

    def deactivate(self) -> None:
        """Free what :meth:`activate` loaded; the build stays.

        Raises:
            BackendStateError: It is not active.
        """
        self._require("deactivate")
        self._deactivate()
        self._lifecycle = BackendState.BUILT

    def deploy(self, device: torch.device | str | None = None) -> None:
        """Become ready to serve for good, and free what only building needed.

        Args:
            device: Device to serve on; ``None`` keeps the one it was built for.

        Raises:
            BackendStateError: It is not built, or is deployed already.
            BuildError: It cannot serve on that device.
        """
        self._require("deploy")
        if device is not None and torch.device(device).type != self._device.type:
            raise BuildError(
                f"{self.describe()} was built for {self._device.type} and cannot be deployed on {device}; "
                f"tune on that device",
                backend=self.describe(),
            )
        if self._lifecycle is BackendState.BUILT:
            self._activate()
        self._deploy()
        self._lifecycle = BackendState.DEPLOYED

    def _require(self, action: str) -> None:
        allowed = _ALLOWED[self._lifecycle]
        if action not in allowed:
            raise BackendStateError(
                f"{self.describe()} is {self._lifecycle.value}: cannot {action}; allowed now: {', '.join(allowed)}",
                backend=self.describe(),
            )

    # -- data ------------------------------------------------------------------------------------------------------

    @abstractmethod
    def to_dict(self) -> dict[str, Any]:
        """Return what :meth:`from_dict` needs: plain data, and :class:`ArtifactPath` entries for files.

        Raises:
            BackendStateError: It was not built yet.
        """

    @classmethod
    @abstractmethod
    def from_dict(cls, module: torch.nn.Module | None, state: dict[str, Any]) -> Backend:
        """Make a built, inactive backend from what :meth:`to_dict` gave, here or in another process.

        Args:
            module: The original module; needed only where :attr:`needs_original_module` says so, or where the backend
                compiles again.
            state: What :meth:`to_dict` gave, with artifact paths that exist here.

        Raises:
            ArtifactError: The state is not one of this backend, or a file is missing.
        """

    # -- for authors -----------------------------------------------------------------------------------------------

    @abstractmethod
    def _build(
        self, module: torch.nn.Module, graph_spec: GraphSpec, data: Sequence[Sample], cache_dir: Path
    ) -> Backend:
        """Build for one graph and return the backend to go on with, usually ``self``."""

    @abstractmethod
    def _activate(self) -> None:
        """Load what is needed to run."""

    @abstractmethod
    def _deactivate(self) -> None:
        """Free what :meth:`_activate` loaded."""

    @abstractmethod
    def _deploy(self) -> None:
        """Free what only building needed."""

    @abstractmethod
    def _infer(self, *args: Any, **kwargs: Any) -> Any:
        """Run one call."""


class TensorBackend(Backend):
    """A backend that runs on the flat list of a graph's input tensors; constants and nesting are handled here.

    A subclass implements :meth:`run_tensors` instead of ``_infer``.
    """

    def _infer(self, *args: Any, **kwargs: Any) -> Any:
        return self.run_tensors(self.graph_spec.input_tensors(args, kwargs))

    @abstractmethod
    def run_tensors(self, tensors: Sequence[torch.Tensor]) -> Any:
        """Run one call and return what the original module would.

        Args:
            tensors: The input tensors in the order of the graph's input spec.
        """
