"""Looks for the batch size up to which more samples at once pay, with the original module."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

import torch

from aitune.exceptions import AITuneUserInputError
from aitune.torch.backend.backend import Backend
from aitune.torch.backend.registry import registry
from aitune.torch.module.graph_spec import GraphSpec
from aitune.torch.module.preserved_state import preserved_state
from aitune.torch.module.sample import Sample
from aitune.torch.task.find_max_batch_size import find_max_batch_size
from aitune.torch.task.profiling.config import ProfilingConfig
from aitune.torch.task.profiling.results import (
    ProfilingResultEvent,
    ProfilingResults,
    get_throughput,
    is_throughput_saturated,
)
from aitune.torch.task.profiling.sweep import profile
from aitune.torch.tune_strategy.build_folder import BuildFolders
from aitune.torch.tune_strategy.graph_job import GraphJob
from aitune.torch.tune_strategy.strategy_settings import plain_settings
from aitune.torch.tune_strategy.tune_strategy import TuneStrategy
from aitune.utils.validation import boolean

LARGEST_BATCH_SIZE = 1024
_FOLDER = "find-max-batch-size"
_LEAST_CALLS = 3
_TIME_SHARE = 0.25
"""Share of what is left of a time budget that the search may take."""

_RESOLUTION = 16
"""How close the last batch size that fits into memory and the first that does not are brought together."""


class FindMaxBatchSizeMixin(TuneStrategy):
    """Widens the batch axis of a graph, before tuning, as far as throughput grows and memory lasts.

    It runs when the user named no batch sizes, or when :meth:`enable_find_max_batch_size` asks for it; never for a
    graph without a batch axis.

    Args:
        args: Arguments of :class:`TuneStrategy`.
        kwargs: Arguments of :class:`TuneStrategy`.
    """

    _find_max_batch_size_backend_class: ClassVar[type[Backend] | None] = None

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._find_max_batch_size: bool | None = None
        super().__init__(*args, **kwargs)

    def _reset(self) -> None:
        super()._reset()
        self.batch_size_search: ProfilingResults | None = None

    def enable_find_max_batch_size(self, enable: bool = True) -> FindMaxBatchSizeMixin:
        """Say whether the search is made, whatever batch sizes the user named.

        Args:
            enable: Whether to search.

        Raises:
            AITuneUserInputError: It is no truth value.
        """
        self._find_max_batch_size = boolean(enable, "enable_find_max_batch_size")
        return self

    @classmethod
    def set_find_max_batch_size_default_backend_class(cls, backend_class: type[Backend] | None) -> None:
        """Set the backend that the search runs on, for this class and its subclasses.

        Args:
            backend_class: A backend class; ``None`` is the original module.

        Raises:
            AITuneUserInputError: It is no backend class.
        """
        if backend_class is not None and not (isinstance(backend_class, type) and issubclass(backend_class, Backend)):
            raise AITuneUserInputError(f"expected a subclass of Backend, got {backend_class!r}")
        cls._find_max_batch_size_backend_class = backend_class

    def find_max_batch_size(
        self,
        module: torch.nn.Module,
        name: str,
        graph_spec: GraphSpec,
        data: list[Sample],
        device: torch.device,
        cache_dir: Path,
    ) -> int:
        """Find the batch size with the largest throughput, and widen the graph up to it; also outside a run.

        Args:
            module: The original module.
            name: Name of the module.
            graph_spec: The graph; its largest batch size is raised.
            data: Recorded calls of the graph.
            device: Device to run on.
            cache_dir: Folder for builds.

        Returns:
            The largest batch size that holds now.

        Raises:
            AITuneUserInputError: There is no recorded call, or the graph has no batch axis.
            ProfilingError: Not even the smallest batch size could be run.
        """
        if not data:
            raise AITuneUserInputError(f"{name} {graph_spec.name}: there is no recorded call to make larger batches of")
        if not graph_spec.batching:
            raise AITuneUserInputError(
                f"{name} {graph_spec.name} has no batch axis, so there is no largest batch size to look for; record "
                f"calls of at least two batch sizes"
            )
        job = GraphJob(module, name, graph_spec, data, device)
        with preserved_state(module), torch.no_grad(), self._search_folder(cache_dir) as folder:
            self.batch_size_search = self._search(job, folder)
        best = max(self.batch_size_search.measurements(), key=lambda measurement: measurement.throughput)
        graph_spec.update_max_batch_size(data[0], max(best.batch_size, graph_spec.get_max_batch_size()))
        return graph_spec.get_max_batch_size()

    @contextmanager
    def _search_folder(self, cache_dir: Path) -> Iterator[Path]:
        """Make a folder for the search; outside a run there is none whose end would remove it."""
        if self._folders is not None:
            yield self._make_folder(_FOLDER)
            return
        folders = BuildFolders(Path(cache_dir))
        try:
            yield folders.make(_FOLDER)
        finally:
            folders.remove_others()

    def _search_end(self) -> float | None:
        left = self._context.seconds_left()
        # Not before now: one batch size is measured in any case, and nothing is at a moment that has passed.
        return None if left is None else self._context.machine.now() + max(_TIME_SHARE * left, 0.1)

    def _search_config(self, batch_size: int) -> ProfilingConfig:
        """Return how a batch size of the search is measured: as well as all others, so that it need not be again."""
        return ProfilingConfig([batch_size])

    def _search(self, job: GraphJob, folder: Path) -> ProfilingResults:
        backend_class = self._find_max_batch_size_backend_class or registry.load("TorchEager")
        backend = backend_class().build(job.module, job.graph_spec, job.data, job.device, folder)
        backend.activate()
        events: list[ProfilingResultEvent] = []
        end = self._search_end()

        def run(batch_size: int) -> None:
            results = profile(
                backend.infer,
                lambda size: job.graph_spec.make_batch(*job.data[0], size),
                self._search_config(batch_size),
                device=job.device,
                copy_inputs=True,
                deadline=end,
                machine=self._context.machine,
            )
            events.extend(results.events)

        def has_time(batch_size: int) -> bool:
            last = events[-1].measurement()
            if end is None or last is None:
                return True
            seconds = _LEAST_CALLS * last.median_ms / 1000.0 * batch_size / last.batch_size
            return self._context.machine.now() + seconds <= end

        smallest = job.graph_spec.get_min_batch_size()
        try:
            found = find_max_batch_size(
                run,
                smallest,
                max(LARGEST_BATCH_SIZE, smallest),
                is_saturated=lambda _: is_throughput_saturated([get_throughput(event) for event in events]),
                has_time=has_time,
                resolution=_RESOLUTION,
            )
        finally:
            backend.deactivate()
        return ProfilingResults(tuple(sorted(events, key=lambda event: event.batch_size)), found.reason)

    def _pre_tune(
        self,
        module: torch.nn.Module,
        name: str,
        graph_spec: GraphSpec,
        data: list[Sample],
        device: torch.device,
        cache_dir: Path,
    ) -> None:
        """Search, where it is asked for, and prepare the references for the range that then holds."""
        wanted = self._find_max_batch_size
        if wanted is None:
            wanted = self._context.batch_sizes is None and self._searches_by_default()
        if wanted and graph_spec.batching:
            self.find_max_batch_size(module, name, graph_spec, data, device, cache_dir)
        super()._pre_tune(module, name, graph_spec, data, device, cache_dir)

    def _searches_by_default(self) -> bool:
        return True

    def to_json_dict(self) -> dict[str, Any]:
        """Return every setting that is needed to repeat the run, as plain data."""
        searches_on = self._find_max_batch_size_backend_class
        return {
            **super().to_json_dict(),
            "find_max_batch_size": self._find_max_batch_size,
            "find_max_batch_size_backend": None if searches_on is None else plain_settings(searches_on),
        }
