"""The one backend that the user names."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from aitune.exceptions import BackendUnavailableError, CorrectnessError, TuningError
from aitune.torch.backend.backend import Backend
from aitune.torch.module.graph_spec import GraphSpec
from aitune.torch.module.sample import Sample
from aitune.torch.task.profiling.config import ProfilingConfig
from aitune.torch.tune_strategy.paired_strategy import PairedProfilingStrategy
from aitune.torch.tune_strategy.profiling_result import _TuneCandidate


class OneBackendStrategy(PairedProfilingStrategy):
    """Uses one backend, or says why not: its own error is raised. Slower than the original, the original stays.

    Args:
        backend: The backend, never built.
        profiling_config: How it is profiled; ``None`` takes the batch sizes of the run, or powers of two.
        kwargs: Arguments of the base classes.

    Raises:
        AITuneUserInputError: It is no backend.
    """

    _title = "One backend"
    _description = "the one that the user names"

    def __init__(self, backend: Backend, profiling_config: ProfilingConfig | None = None, **kwargs: Any) -> None:
        super().__init__([backend], profiling_config, **kwargs)

    def _run_backends(  # noqa: PLR0913, PLR0917 - the published signature
        self,
        module: torch.nn.Module,
        name: str,
        graph_spec: GraphSpec,
        data: list[Sample],
        device: torch.device,
        cache_dir: Path,
        batching: bool,
        max_batch_size: int,
    ) -> _TuneCandidate | None:
        """Build, check and profile the backend; raise what it raised."""
        best = super()._run_backends(module, name, graph_spec, data, device, cache_dir, batching, max_batch_size)
        outcome = self._outcomes[self._backends[0].key()]
        if best is not None or outcome.status == "ok":
            return best
        if self._last_error is not None:
            raise self._last_error
        message = f"{outcome.description} cannot serve {name} {graph_spec.name}: {outcome.reason}"
        if outcome.status == "unavailable":
            raise BackendUnavailableError(message)
        raise (CorrectnessError if outcome.status == "rejected" else TuningError)(message)
