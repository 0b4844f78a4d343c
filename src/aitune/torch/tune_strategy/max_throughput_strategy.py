"""The backend with the most samples per second, at whatever batch size gives them."""

from __future__ import annotations

from aitune.torch.tune_strategy.paired_strategy import PairedProfilingStrategy


class MaxThroughputStrategy(PairedProfilingStrategy):
    """Selects the backend with the highest throughput over the batch sizes of the graph.

    Args:
        backends: Candidates in order of preference; ``None`` takes the defaults.
        profiling_config: How candidates are profiled; ``None`` takes the batch sizes of the run, or powers of two.
        kwargs: Arguments of the base classes.
    """

    _title = "Max throughput"
    _description = "the most samples per second at the best batch size of each candidate"
