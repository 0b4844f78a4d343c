"""The first backend that is good enough."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from aitune.torch.backend.backend import Backend
from aitune.torch.module.graph_spec import GraphSpec
from aitune.torch.module.recording_module import Sample
from aitune.torch.task.profiling.config import ProfilingConfig
from aitune.torch.tune_strategy.candidate import describe_candidate
from aitune.torch.tune_strategy.paired_strategy import PairedProfilingStrategy
from aitune.torch.tune_strategy.profiling_tune_strategy import _TuneCandidate


class FirstWinsStrategy(PairedProfilingStrategy):
    """Uses the first backend that builds, agrees and is faster than the original; later ones are not built.

    Args:
        backends: Candidates in order; ``None`` takes the defaults.
        profiling_config: How candidates are profiled; ``None`` takes the batch sizes of the run, or powers of two.
        kwargs: Arguments of the base classes.
    """

    _title = "First wins"
    _description = "the first that builds, agrees and is faster than the original"

    def __init__(
        self, backends: list[Backend] | None = None, profiling_config: ProfilingConfig | None = None, **kwargs: Any
    ) -> None:
        super().__init__(backends, profiling_config, **kwargs)

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
        """Build, check and profile one backend after the other until one is good enough."""
        config = self._get_profiling_config(batching, max_batch_size)
        winner: _TuneCandidate | None = None
        for backend in self._backends:
            if winner is not None or self._context.is_over():
                why = "one before it won" if winner is not None else "the time budget was spent before it was tried"
                self._record(name, graph_spec, replace(describe_candidate(backend), reason=why))
                continue
            candidate = self._try_candidate(backend, module, name, graph_spec, data, device, config)
            if candidate is None:
                continue
            chosen = self._choose_finalist([candidate], name, graph_spec, data)
            baseline = self._baseline_candidate()
            if not self._performance_validation_enabled or baseline is None or self._beats_baseline(chosen, baseline):
                winner = chosen
                self._reason = f"the first that is good enough: {self._reason}"
            else:
                self._release(self._key_of(backend))
        return winner
