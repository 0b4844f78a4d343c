"""What candidates are compared with, as frozen data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from aitune.torch.module.graph_spec import GraphSpec
from aitune.torch.module.sample import Sample
from aitune.torch.task.comparison import Expectation


@dataclass(frozen=True)
class ReferenceCall:
    """One call and what the original module does with it.

    Args:
        where: Name of the call for people.
        call: The call, in canonical form; clone it before it is run.
        output: What the original module returned, nested as it is.
        expectations: One for each tensor of the output.
        inputs_after: Each input tensor as the forward leaves it; ``None`` where it leaves it alone.
        shares_input: For each output tensor, whether it shares memory with an input.
        is_recorded: Whether the user's data made the call.
        buffers_after: The buffers of the module that the forward changes, by name, as it leaves them.
    """

    where: str
    call: Sample
    output: Any
    expectations: tuple[Expectation, ...]
    inputs_after: tuple[torch.Tensor | None, ...]
    shares_input: tuple[bool, ...]
    is_recorded: bool
    buffers_after: Mapping[str, torch.Tensor] = field(default_factory=dict)


@dataclass(frozen=True)
class SingleRow:
    """A row of a batched call, as a call of its own.

    Args:
        where: Name of the reference call that the row is from.
        row: Which row.
        call: The call with a batch of one.
    """

    where: str
    row: int
    call: Sample


@dataclass(frozen=True)
class Probe:
    """A call with exceptional values, and what the original module does with it.

    Args:
        where: Name of the call for people: ``"NaN in x"``.
        call: The call, in canonical form; clone it before it is run.
        output: What the original module returned; ``None`` where it raised.
        expectations: One for each tensor of the output.
        refusal: What the original raised, in words.
        is_index: Whether it is an id beyond its table; some runtimes end the process on one.
        alone: Name of the call of one row that has the same value; what is otherwise there already is not said twice.
    """

    where: str
    call: Sample
    output: Any
    expectations: tuple[Expectation, ...]
    refusal: str | None = None
    is_index: bool = False
    alone: str | None = None


@dataclass(frozen=True)
class References:
    """Everything that candidates of one graph are compared with.

    Args:
        graph_spec: The graph.
        calls: The calls with their outputs, at least one.
        rows: Rows to run alone; empty where the rows of the original influence each other or there is no batch axis.
        sequence: Outputs of the first call made again and again, where the module's state makes them differ.
        notes: What cannot be compared, and why.
        seed: What torch's random generators were seeded with before every call.
        seconds: Time that running the original took.
        probes: Calls with exceptional values (NaN, infinities, ids beyond their table).
        buffers_before: The buffers that the forward changes, as they were when the original ran.
        rejects_deviations: Whether another answer to one of the probes rejects a candidate; else it is reported.
    """

    graph_spec: GraphSpec
    calls: tuple[ReferenceCall, ...]
    rows: tuple[SingleRow, ...] = ()
    sequence: tuple[Any, ...] = ()
    notes: tuple[str, ...] = ()
    seed: int = 0
    seconds: float = 0.0
    probes: tuple[Probe, ...] = ()
    rejects_deviations: bool = False
    buffers_before: Mapping[str, torch.Tensor] = field(default_factory=dict)

    def within(self, equal_symbols: Sequence[Sequence[str]]) -> References:
        """Return the references without the made-up calls that a candidate leaves to the original module.

        Args:
            equal_symbols: Groups of symbols that the candidate serves only where their values are equal.
        """
        outside = {
            call.where
            for call in self.calls
            if not call.is_recorded and _differ(self.graph_spec.symbol_sizes(call.call), equal_symbols)
        }
        if not outside:
            return self
        calls = f"{len(outside)} made-up calls were" if len(outside) > 1 else f"{next(iter(outside))} was"
        groups = "; ".join(" = ".join(group) for group in equal_symbols)
        return replace(
            self,
            calls=tuple(call for call in self.calls if call.where not in outside),
            rows=tuple(row for row in self.rows if row.where not in outside),
            notes=(*self.notes, f"{calls} not compared: the candidate needs {groups}; the original answers such calls"),
        )

    @property
    def is_random(self) -> bool:
        """Whether the value of an output differs from run to run."""
        return any(expectation.is_random for call in self.calls for expectation in call.expectations)

    @property
    def modifies_inputs(self) -> bool:
        """Whether the forward changes one of its inputs in place."""
        return any(after is not None for call in self.calls for after in call.inputs_after)


def _differ(sizes: Mapping[str, int], equal_symbols: Sequence[Sequence[str]]) -> bool:
    return any(len({sizes[name] for name in group if name in sizes}) > 1 for group in equal_symbols)
