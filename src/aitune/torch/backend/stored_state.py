"""Reading the stored state of a backend."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from aitune.exceptions import ArtifactError
from aitune.torch.backend.backend import Backend, BackendState
from aitune.torch.module.plain_data import graph_spec_from_dict


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
