"""Calls that rejected candidates got wrong, kept for this process, so that a report can be asked where and why."""

from __future__ import annotations

import threading
from collections import OrderedDict

from aitune.torch.module.sample import Sample
from aitune.torch.task.outcome import CandidateOutcome, Rejection
from aitune.torch.task.reference_call import References
from aitune.torch.task.structure import clone_tensors, tensors_with_locators

CHECKS_OF_VALUES = ("value", "finite")
"""Checks that a wrong number fails: only such a one comes from some operation inside of the graph."""

_MOST_CALLS = 16
_MOST_BYTES = 64 * 2**20

_Place = tuple[str, str, str]


class Disagreements:
    """The last few calls that candidates got wrong, by module, graph and candidate; large ones are not kept."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._calls: OrderedDict[_Place, tuple[Rejection, Sample]] = OrderedDict()

    def keep(self, module: str, graph: str, outcome: CandidateOutcome, references: References | None) -> None:
        """Keep the call that a candidate was rejected for, where its values differ.

        Args:
            module: Name of the module.
            graph: Name of the graph.
            outcome: How the candidate ended; others than rejected ones are passed over.
            references: What it was compared with.
        """
        rejection = outcome.agreement.rejection if outcome.agreement is not None else None
        if rejection is None or references is None or rejection.check not in CHECKS_OF_VALUES:
            return
        known = {made.where: made.call for made in references.calls}
        known.update((made.where, made.call) for made in references.probes)
        call = known.get(rejection.where)
        size = sum(t.numel() * t.element_size() for _, t in tensors_with_locators(call)) if call is not None else 0
        if call is None or size > _MOST_BYTES:
            return
        with self._lock:
            self._calls[module, graph, outcome.key] = (rejection, clone_tensors(call))
            self._calls.move_to_end((module, graph, outcome.key))
            while len(self._calls) > _MOST_CALLS:
                self._calls.popitem(last=False)

    def find(self, module: str, graph: str, outcome: CandidateOutcome) -> Sample | None:
        """Return the kept call of a candidate's rejection; ``None`` when this process does not have it.

        Args:
            module: Name of the module.
            graph: Name of the graph.
            outcome: How the candidate ended.
        """
        with self._lock:
            kept = self._calls.get((module, graph, outcome.key))
        rejection = outcome.agreement.rejection if outcome.agreement is not None else None
        return clone_tensors(kept[1]) if kept is not None and kept[0] == rejection else None


disagreements = Disagreements()
"""Those of this process."""
