"""Sees to it that a module has the weights that its builds answer with."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import torch

from aitune.artifact.manifest import ModuleRecord
from aitune.artifact.reading import Artifact
from aitune.exceptions import ArtifactError
from aitune.torch.checkpoint.module_weights import (
    current_values,
    first_other_value,
    load_weights,
    put_back,
    tensors_with_hashes,
)
from aitune.torch.checkpoint.unpacking_folder import UnpackingFolder
from aitune.torch.module.tensor_digests import TensorDigests


class TunedWeights:
    """The weights of the tuning, brought into a module or compared with those that it has.

    Comparing reads all of them, so it goes on in other threads while the builds are loaded.

    Args:
        artifact: The opened file.
        record: The module in it.
        original: The module that is given; ``None`` leaves nothing to do.
    """

    def __init__(self, artifact: Artifact, record: ModuleRecord, original: torch.nn.Module | None) -> None:
        self._artifact = artifact
        self._record = record
        matters = record.weights is not None or any(build.holds_weights for build in record.backends)
        self._module = original if matters else None
        self.digests = TensorDigests()
        """Hashes of the module's weights, as far as they are known."""

    def bring(self, on_error: ExitStack) -> None:
        """Put the weights of the file into the module, if it has any and the module has others.

        Args:
            on_error: Gets what puts the old ones back.

        Raises:
            ArtifactError: The stored weights are not those of the tuning.
        """
        stored, module = self._record.weights, self._module
        if module is None or stored is None or self._other() is None:
            return
        folder = UnpackingFolder()
        try:
            self._artifact.extract([stored], folder.path)
            on_error.push(when_raised(put_back, current_values(module)))
            load_weights(module, folder.path / stored.path)
        finally:
            folder.remove()
        self.digests = TensorDigests()
        still = self._other()
        if still is not None:
            raise ArtifactError(f"the weights in {self._artifact.path} are not those of the tuning: {still!r} differs")

    def start_comparing(self) -> None:
        """Begin to hash what the module has, and return at once."""
        if self._module is not None:
            self.digests.start(tensors_with_hashes(self._record.tensors, self._module))

    def require_same(self) -> None:
        """Wait for the comparison.

        Raises:
            ArtifactError: The module has other weights.
        """
        other = self._other()
        if other is not None:
            raise ArtifactError(
                f"{self._record.name!r} has other weights than it was tuned with (the first is {other!r}), and "
                f"{self._artifact.path} answers with those: load the weights of the tuning into the module first, or "
                f"save with include_original_weights=True"
            )

    def _other(self) -> str | None:
        if self._module is None:
            return None
        return first_other_value(self._record.tensors, self._module, self.digests)


def when_raised(undo: Callable[..., Any], *args: Any) -> Callable[..., None]:
    """Return an exit function that undoes something when the block it belongs to raised.

    Args:
        undo: What is called then.
        args: With what.
    """

    def leave(kind: Any, error: Any, trace: Any) -> None:
        if kind is not None:
            undo(*args)

    return leave
