"""What the backends share that build files ahead of time and run on flat tensors."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar, TypeVar

import torch

from aitune.exceptions import (
    ArtifactError,
    BackendError,
    BackendStateError,
    BuildError,
    ControlFlowError,
    InferenceError,
)
from aitune.torch.backend.artifact_path import ArtifactPath
from aitune.torch.backend.backend import TensorBackend
from aitune.torch.backend.backend_config import BackendConfig
from aitune.torch.backend.fingerprint import backend_key
from aitune.torch.backend.stored_state import StoredState, stored_form
from aitune.torch.backend.verification_calls import VerificationCalls
from aitune.torch.module.graph_spec import GraphSpec
from aitune.torch.module.locator import format_locator

ArtifactBackendT = TypeVar("ArtifactBackendT", bound="ArtifactBackend")


class ArtifactBackend(TensorBackend):
    """A backend whose build is a file or folder, loaded by ``_activate`` and run by ``run_tensors``.

    ``infer`` checks dtypes and sizes, because not every runtime does; ``run_tensors`` trusts a caller that has checked
    them already, as a tuned module does.

    Attributes:
        config_type: Class of the configuration.
        version_packages: Packages whose versions decide what is built, beside aitune and torch.
    """

    config_type: ClassVar[type[BackendConfig]]
    version_packages: ClassVar[tuple[str, ...]] = ()

    def __init__(self, config: BackendConfig | None = None) -> None:
        super().__init__()
        self.config = config if config is not None else self.config_type()
        self._artifact: ArtifactPath | None = None

    def key(self) -> str:
        """Return name, configuration and versions as one string."""
        return backend_key(self.name, self.config, self.version_packages)

    def describe(self) -> str:
        """Return the name, and the settings that differ from their defaults."""
        return self.config.describe_backend(self.name)

    @property
    def artifact(self) -> ArtifactPath:
        """The file or folder that was built.

        Raises:
            BackendStateError: Nothing was built yet.
        """
        if self._artifact is None:
            raise BackendStateError(f"{self.describe()} was not built yet; call build first", backend=self.describe())
        return self._artifact

    def _infer(self, *args: Any, **kwargs: Any) -> Any:
        tensors = self.graph_spec.input_tensors(args, kwargs)
        reason = refused_call(tensors, self.graph_spec, self.equal_symbols)
        if reason is not None:
            raise InferenceError(
                f"{self.describe()} was built for {self.graph_spec.describe()}: {reason}; such a call has to run on "
                f"the original module",
                backend=self.describe(),
                graph=self.graph_spec.name,
            )
        return self.run_tensors(tensors)

    def _deploy(self) -> None:
        """Nothing is left from the build."""

    def to_dict(self) -> dict[str, Any]:
        """Return configuration, graph and files."""
        return {
            **stored_form(self, self.config, self.version_packages),
            "equal_symbols": [list(group) for group in self.equal_symbols],
            "notes": list(self.notes),
            "artifact": self.artifact,
        }

    @classmethod
    def from_dict(
        cls: type[ArtifactBackendT], module: torch.nn.Module | None, state: dict[str, Any]
    ) -> ArtifactBackendT:
        """Make a built, inactive backend from what :meth:`to_dict` gave; the module is not needed."""
        stored = StoredState(cls.__name__.removesuffix("Backend"), state)
        artifact = stored.field("artifact", ArtifactPath)
        if not artifact.path.exists():
            raise ArtifactError(f"{stored.name}: its file {artifact.path} is missing; build it again")
        backend = cls(cls.config_type.from_dict(stored.field("config", Mapping)))
        stored.restore_into(backend)
        backend._artifact = ArtifactPath.from_existing(artifact.path, artifact.root)
        backend.equal_symbols = tuple(tuple(group) for group in stored.field("equal_symbols", Sequence))
        backend.notes = tuple(stored.field("notes", Sequence))
        cls._check_versions(stored.field("versions", Mapping))
        return backend

    @classmethod
    def _check_versions(cls, versions: Mapping[str, str]) -> None:
        """Raise ArtifactError where files made by other versions must not be loaded; most formats may."""

    @abstractmethod
    def _deactivate(self) -> None:
        """Free what ``_activate`` loaded."""

    def _build_first_way_that_works(self, ways: Iterable[Callable[[], None]], calls: VerificationCalls) -> None:
        """Try ways to build until one can be run; each writes its files and sets the artifact.

        Args:
            ways: The ways, in order of preference.
            calls: What the build is run with, to see whether it works.

        Raises:
            BuildError: None works; the message has the reason of each that was tried.
        """
        failures: list[BackendError] = []
        for way in ways:
            try:
                way()
                self._verify(calls.inputs, calls.outputs)
                return
            except ControlFlowError as error:
                # Tracing would succeed, and keep the branch that its one run took.
                failures.append(error)
                break
            except BackendError as error:
                failures.append(error)
        raise BuildError(
            f"{self.describe()} could not be built: " + "; then ".join(error.message for error in failures),
            backend=self.describe(),
            graph=self.graph_spec.name,
        ) from failures[0]

    def _verify(self, calls: Sequence[Sequence[torch.Tensor]], expected: Sequence[Sequence[torch.Tensor]]) -> None:
        """Load the build, run calls, and compare kinds and sizes of the outputs with the module's.

        Whether the values agree is judged elsewhere; this finds a build that cannot run or has fixed its sizes, early
        enough to try another way.

        Args:
            calls: Input tensors of each call.
            expected: Output tensors of the module for each call.

        Raises:
            BuildError: It cannot run one of the calls, or the outputs are not alike.
        """
        self._activate()
        try:
            for tensors, outputs in zip(calls, expected, strict=True):
                _require_alike(self.graph_spec.output_spec.tensors_of(self.run_tensors(tensors)), outputs)
        except BackendError:
            raise
        except Exception as error:
            raise BuildError(f"what was built does not run: {type(error).__name__}: {error}") from error
        finally:
            self._deactivate()


def _require_alike(outputs: Sequence[torch.Tensor], expected: Sequence[torch.Tensor]) -> None:
    got = [(output.dtype, tuple(output.shape)) for output in outputs]
    wanted = [(output.dtype, tuple(output.shape)) for output in expected]
    if got != wanted:
        raise BuildError(f"what was built returns {got} where the module returns {wanted}")


def refused_call(
    tensors: Sequence[torch.Tensor], graph_spec: GraphSpec, equal_symbols: Sequence[Sequence[str]]
) -> str | None:
    """Say why a call does not belong to a graph; ``None`` when it does.

    Args:
        tensors: Input tensors of the call.
        graph_spec: The graph.
        equal_symbols: Groups of symbols that must have the same value.
    """
    specs = graph_spec.input_spec.tensor_specs
    if len(tensors) != len(specs):
        return f"got {len(tensors)} tensors, expected {len(specs)}"
    values: dict[str, int] = {}
    leader = {name: group[0] for group in equal_symbols for name in group}
    for tensor, spec in zip(tensors, specs, strict=True):
        where = format_locator(spec.locator)
        if tensor.dtype is not spec.dtype:
            return f"{where} is {tensor.dtype}, expected {spec.dtype}"
        if tensor.dim() != spec.rank or tensor.layout is not torch.strided:
            return f"{where} has {tensor.dim()} axes in layout {tensor.layout}, expected {spec.rank}, strided"
        for axis, found in zip(spec.axes, tensor.shape, strict=True):
            if not axis.min <= found <= axis.max or (axis.symbol is not None and found % axis.size):
                return (
                    f"{where} has shape {tuple(tensor.shape)}, expected {spec} from {spec.min_shape} to "
                    f"{spec.max_shape}"
                )
            if axis.symbol is not None:
                name = leader.get(axis.symbol.name, axis.symbol.name)
                if values.setdefault(name, found // axis.size) != found // axis.size:
                    return f"{where} has {axis} = {found}, which differs from another axis of {name} ({values[name]})"
    return None
