"""Writing and reading the stored state of a backend."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar, cast

import torch

from aitune.exceptions import ArtifactError
from aitune.torch.backend.backend import Backend, BackendState
from aitune.torch.backend.backend_config import BackendConfig
from aitune.torch.backend.fingerprint import library_versions
from aitune.torch.module.plain_data import graph_spec_from_dict, graph_spec_to_dict

BackendT = TypeVar("BackendT", bound=Backend)


def stored_form(backend: Backend, config: BackendConfig, packages: tuple[str, ...]) -> dict[str, Any]:
    """Return what every backend stores of itself: name, configuration, graph, device and versions.

    Args:
        backend: A built backend.
        config: Its configuration.
        packages: Packages whose versions matter, beside torch.
    """
    return {
        "backend": backend.name,
        "config": config.to_dict(),
        "graph_spec": graph_spec_to_dict(backend.graph_spec),
        "device": str(backend.device),
        "versions": library_versions(packages),
    }


def restore_on_module(
    backend_class: type[BackendT],
    config_class: type[BackendConfig],
    module: torch.nn.Module | None,
    state: Mapping[str, Any],
    does: str,
) -> BackendT:
    """Make a built, inactive backend that needs nothing but the original module and its configuration.

    Args:
        backend_class: Its class; it takes a configuration and keeps the module as ``_module``.
        config_class: Class of the configuration.
        module: The original module.
        state: What ``to_dict`` gave.
        does: What it does with the module, for the error: ``"compiles"``.

    Raises:
        ArtifactError: The state is not one of this backend, or no module is given.
    """
    stored = StoredState(backend_class.__name__.removesuffix("Backend"), state)
    if module is None:
        raise ArtifactError(f"{stored.name} {does} the original module; give it")
    make: Any = backend_class
    backend: Any = make(config_class.from_dict(stored.field("config", Mapping)))
    stored.restore_into(backend)
    backend._module = module
    return cast(BackendT, backend)


class StoredState:
    """Reads the state of a backend, with an error that says what is wrong.

    Args:
        name: Name of the backend that it must be a state of.
        state: What ``to_dict`` gave.

    Raises:
        ArtifactError: It is the state of another backend, or none.
    """

    def __init__(self, name: str, state: Mapping[str, Any]) -> None:
        self.name = name
        self._state = state
        if not isinstance(state, Mapping) or state.get("backend") != name:
            found = state.get("backend") if isinstance(state, Mapping) else type(state).__name__
            raise ArtifactError(f"expected a stored state of backend {name!r}, got one of {found!r}")

    def field(self, name: str, kind: Any) -> Any:
        """Return a field.

        Args:
            name: Its name.
            kind: Type that it must have.

        Raises:
            ArtifactError: It is missing or has another type.
        """
        value = self._state.get(name)
        if not isinstance(value, kind):
            raise ArtifactError(
                f"stored state of {self.name}: {name!r} must be a {getattr(kind, '__name__', kind)}, got {value!r}"
            )
        return value

    def restore_into(self, backend: Backend) -> None:
        """Give a new backend its graph and device, and mark it as built.

        Args:
            backend: The backend.

        Raises:
            ArtifactError: The graph or the device cannot be read.
        """
        backend._graph_spec = graph_spec_from_dict(self.field("graph_spec", dict))
        try:
            backend._device = torch.device(self.field("device", str))
        except RuntimeError as error:
            raise ArtifactError(f"stored state of {self.name}: {error}") from error
        backend._lifecycle = BackendState.BUILT
