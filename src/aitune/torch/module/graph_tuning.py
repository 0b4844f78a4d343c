"""Tunes the recorded graphs of one module, each with its strategy."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import torch

from aitune.exceptions import AITuneError, AITuneUserInputError, TuningError
from aitune.torch.module.changed_arguments import as_function
from aitune.torch.module.graph_spec import GraphSpec
from aitune.torch.module.lasting_effects import find_lasting_effect
from aitune.torch.module.recording_module import RecordedGraph
from aitune.torch.module.sample import Sample
from aitune.torch.module.servable import Servable, TunedGraph
from aitune.utils.error_text import error_line

logger = logging.getLogger(__name__)


class Tuner(Protocol):
    """What :meth:`Module.tune` needs of a strategy."""

    def tune(
        self,
        module: torch.nn.Module,
        name: str,
        graph_spec: GraphSpec,
        data: list[Sample],
        device: torch.device,
        cache_dir: Path,
    ) -> Servable:
        """Return what is to serve the graph, ready to run."""

    def tune_dry_run(
        self,
        module: torch.nn.Module,
        name: str,
        graph_spec: GraphSpec,
        data: list[Sample],
        device: torch.device,
        cache_dir: Path,
    ) -> Any:
        """Say what would be tried, without building."""


Strategies = Sequence[Tuner] | Mapping[str, Tuner]
"""Strategies by graph: a list in the order of the graphs, or a mapping by graph name."""


def check_tuners(strategy: Any, strategies: Any) -> None:
    """Make sure that what was given as strategies can be used as such.

    Args:
        strategy: Strategy for all graphs, or ``None``.
        strategies: Strategies by graph, or ``None``.

    Raises:
        AITuneUserInputError: Both are given, or one is of another kind.
    """
    if strategy is not None and strategies is not None:
        raise AITuneUserInputError("give strategy= for all graphs or strategies= for each, not both")
    if strategies is not None and (isinstance(strategies, str) or not isinstance(strategies, Sequence | Mapping)):
        raise AITuneUserInputError(
            f"strategies must be a list in the order of the graphs or a mapping by graph name, got {strategies!r}"
        )
    listed = list(strategies.values() if isinstance(strategies, Mapping) else strategies or ())
    for given in [*listed, *([] if strategy is None else [strategy])]:
        if isinstance(given, type):
            raise AITuneUserInputError(f"a strategy must be an instance, got a class; give {given.__name__}()")
        if not callable(getattr(given, "tune", None)) or not callable(getattr(given, "tune_dry_run", None)):
            raise AITuneUserInputError(f"a strategy must have tune and tune_dry_run, got {given!r}")


def device_to_tune_for(name: str, own: torch.device, wanted: torch.device | str | None) -> torch.device:
    """Return the device to tune a module for.

    Args:
        name: Name of the module.
        own: Device that it is on.
        wanted: What was asked for, if anything.

    Raises:
        AITuneUserInputError: What was asked for is no device, or one of another kind.
    """
    try:
        asked = own if wanted is None else torch.device(wanted)
    except (RuntimeError, TypeError) as error:
        raise AITuneUserInputError(f"{name}: {wanted!r} is no device of torch: {error_line(error)}") from error
    if asked.type != own.type:
        raise AITuneUserInputError(
            f"{name} is on {own}, tuning was asked for on {asked}; move it first: module.to({str(asked)!r})"
        )
    return own


@dataclass(frozen=True)
class GraphTuning:
    """How the graphs of one module are to be tuned.

    Args:
        module: The module, without the hooks around it.
        name: Its name.
        device: Device to tune for.
        cache_dir: Folder for its builds.
        strategy: Strategy for graphs that have none of their own.
        strategies: Strategies by graph.
        errors: Why graphs could not be tuned, by name; filled by :meth:`tune`.
    """

    module: torch.nn.Module
    name: str
    device: torch.device
    cache_dir: Path
    strategy: Tuner | None
    strategies: Strategies | None
    errors: dict[str, AITuneError] = field(default_factory=dict)

    def tune(self, graphs: Sequence[RecordedGraph], dry_run: bool = False) -> list[TunedGraph]:
        """Tune graphs one after the other; one that cannot be tuned is left out, with a warning.

        Args:
            graphs: The recorded graphs.
            dry_run: Only say what would be tried.

        Returns:
            The tuned graphs; none after a dry run.

        Raises:
            AITuneUserInputError: A strategy is given for a graph that was not recorded, or more of them than graphs.
            AITuneError: No graph could be tuned; it is the error of the first one.
        """
        self._check_graphs([graph.spec.name for graph in graphs])
        tuned: list[TunedGraph] = []
        self.errors.clear()
        for number, graph in enumerate(graphs):
            try:
                backend = self._tune_one(number, graph, dry_run)
            except AITuneError as error:
                self.errors[graph.spec.name] = error
                continue
            if not dry_run:
                tuned.append(TunedGraph(graph.spec, backend))
        if self.errors and len(self.errors) == len(graphs):
            raise next(iter(self.errors.values()))
        for name, reason in self.errors.items():
            logger.warning("%s %s runs on the original module: %s", self.name, name, reason)
        return tuned

    def _check_graphs(self, recorded: Sequence[str]) -> None:
        if isinstance(self.strategies, Mapping):
            unknown = [str(name) for name in self.strategies if name not in recorded]
            if unknown:
                raise AITuneUserInputError(
                    f"{self.name}: strategies names {', '.join(unknown)}; the recorded graphs are {', '.join(recorded)}"
                )
        elif self.strategies is not None and len(self.strategies) > len(recorded):
            raise AITuneUserInputError(
                f"{self.name}: {len(self.strategies)} strategies for {len(recorded)} recorded graphs "
                f"({', '.join(recorded)}); give one for each at most, or a mapping by graph name"
            )

    def _tune_one(self, number: int, graph: RecordedGraph, dry_run: bool) -> Any:
        if graph.problem is not None:
            raise TuningError(f"{self.name} {graph.spec.name}: {graph.problem}")
        chosen = self._strategy_for(number, graph.spec.name)
        call = chosen.tune_dry_run if dry_run else chosen.tune
        module, samples = as_function(self.module, graph.spec), list(graph.samples)
        graph.spec.kept_on_original = find_lasting_effect(module, graph.spec, samples)
        return call(module, self.name, graph.spec, samples, self.device, self.cache_dir / graph.spec.name)

    def _strategy_for(self, number: int, graph: str) -> Tuner:
        chosen: Tuner | None = None
        if isinstance(self.strategies, Mapping):
            chosen = self.strategies.get(graph)
        elif self.strategies is not None and number < len(self.strategies):
            chosen = self.strategies[number]
        chosen = chosen or self.strategy
        if chosen is None:
            raise AITuneUserInputError(
                f"{self.name}: no strategy for {graph}; give strategy= to ait.Module or to tune, or use ait.tune"
            )
        return chosen
