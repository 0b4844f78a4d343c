"""The backend that answers one call soonest."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from aitune.exceptions import AITuneUserInputError
from aitune.torch.backend.backend import Backend
from aitune.torch.module.graph_spec import GraphSpec
from aitune.torch.module.sample import Sample
from aitune.torch.task.profiling.config import ProfilingConfig
from aitune.torch.tune_strategy.paired_strategy import PairedProfilingStrategy
from aitune.torch.tune_strategy.profiling_result import BackendProfilingResult
from aitune.torch.tune_strategy.sweep_result import LatencyResult, SweepResult
from aitune.utils.validation import positive_integer


class MinLatencyStrategy(PairedProfilingStrategy):
    """Selects the backend with the lowest median latency at one batch size.

    Args:
        backends: Candidates in order of preference; ``None`` takes the defaults.
        profiling_config: How candidates are profiled; its batch sizes do not matter.
        batch_size: Batch size of the calls; ``None`` is the smallest that was recorded.
        kwargs: Arguments of the base classes.

    Raises:
        AITuneUserInputError: The batch size is no positive integer.
    """

    _title = "Min latency"
    _description = "the lowest median latency of a call"
    _metric_label = "latency"
    _metric_unit = "ms"
    _value_fmt = ".3f"

    def __init__(
        self,
        backends: list[Backend] | None = None,
        profiling_config: ProfilingConfig | None = None,
        *,
        batch_size: int | None = None,
        **kwargs: Any,
    ) -> None:
        self._batch_size = None if batch_size is None else positive_integer(batch_size, "batch_size")
        super().__init__(backends, profiling_config, **kwargs)

    def _searches_by_default(self) -> bool:
        return False

    def _measure(
        self,
        backend: Backend,
        name: str,
        graph_spec: GraphSpec,
        data: list[Sample],
        profiling_cfg: ProfilingConfig,
    ) -> LatencyResult:
        """Profiles the backend and returns its result."""
        swept = self._sweep(backend, graph_spec, data, self._at_one_size(graph_spec, data, profiling_cfg))
        return LatencyResult(swept[0].batch_size, swept, self._key_of(backend))

    def _at_one_size(
        self, graph_spec: GraphSpec, data: Sequence[Sample], profiling_cfg: ProfilingConfig
    ) -> ProfilingConfig:
        low, high = graph_spec.get_min_batch_size(), graph_spec.get_max_batch_size()
        size = self._batch_size
        if size is None:
            size = min(graph_spec.batch_size_of(sample) for sample in data)
        if graph_spec.batching and not low <= size <= high:
            raise AITuneUserInputError(
                f"batch_size={size} is outside the recorded range {low}..{high} of {graph_spec.name}; "
                f"record samples at that batch size"
            )
        return replace(profiling_cfg, batch_sizes=[size])

    def _is_better(self, result: BackendProfilingResult, other: BackendProfilingResult) -> bool:
        """Returns True when `result` is clearly better: by their paired comparison, else by their intervals."""
        verdict = result.verdict_against(other) if isinstance(result, SweepResult) else None
        return result.bounds[1] < other.bounds[0] if verdict is None else verdict == "faster"

    def _speedup(self, result: BackendProfilingResult, baseline_result: BackendProfilingResult) -> float:
        """Returns the speedup of `result` relative to `baseline_result` (>1 is faster)."""
        return baseline_result.metric / result.metric

    def to_json_dict(self) -> dict[str, Any]:
        """Returns config dict for the strategy."""
        return {**super().to_json_dict(), "batch_size": self._batch_size}
