"""The first backend that is good enough."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch

from aitune.torch.module.graph_spec import GraphSpec
from aitune.torch.module.sample import Sample
from aitune.torch.tune_strategy.candidate import describe_candidate
from aitune.torch.tune_strategy.graph_job import GraphJob
from aitune.torch.tune_strategy.paired_strategy import PairedProfilingStrategy
from aitune.torch.tune_strategy.profiling_result import _TuneCandidate


class FirstWinsStrategy(PairedProfilingStrategy):
    """Uses the first backend that builds, agrees and is faster than the original; later ones are not built.

    Args:
        backends: Candidates in order; ``None`` takes the defaults.
        profiling_config: How candidates are profiled; ``None`` takes the batch sizes of the run, or powers of two.
        kwargs: Arguments of the base classes.
    """

    _title = "First wins"
    _description = "the first that builds, agrees and is faster than the original"

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
        job = GraphJob(module, name, graph_spec, data, device)
        config = self._profiling_config_for(batching, max_batch_size)
        winner: _TuneCandidate | None = None
        for backend in self._backends:
            if winner is not None:
                self._record(job, replace(describe_candidate(backend), reason="one before it won"))
                continue
            candidate = self._try_candidate(backend, job, config)
            if candidate is None:
                continue
            standing = self._shortlist([candidate])
            chosen = self._choose_finalist(standing, job) if standing else None
            opponent = self._opponent
            if chosen is not None and (opponent is None or self._is_better_candidate(chosen, opponent)):
                winner = chosen
            else:
                self._release(self._key_of(candidate.backend))
        return winner

    def _why_won(self, best: _TuneCandidate) -> str:
        return f"the first in the list that is {'usable' if self._opponent is None else super()._why_won(best)}"
