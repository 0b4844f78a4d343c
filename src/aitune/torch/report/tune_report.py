"""The record of one tune call: what was tried, what was seen, what was chosen and why."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from aitune.exceptions import AITuneUserInputError
from aitune.torch.report.environment import Environment
from aitune.torch.report.front import FrontPoint, speed_accuracy_front
from aitune.torch.report.plain_json import from_text, to_text
from aitune.torch.report.table import graph_table
from aitune.torch.report.wording import graph_sentence, shorten, winner_of
from aitune.torch.report.wrapping import wrap_text
from aitune.torch.task.outcome import CandidateOutcome, GraphReport
from aitune.units import get_metric
from aitune.utils.printable import printable
from aitune.utils.validation import integer_at_least

if TYPE_CHECKING:
    from aitune.torch.report.explanation import Explanation

FORMAT_VERSION = 1

_LEAST_WIDTH = 80
"""Characters that the columns of a table take."""

ModuleStatus = Literal["tuned", "original kept", "failed", "already tuned", "not called"]


@dataclass(frozen=True)
class ModuleReport:
    """What became of one module.

    Args:
        name: Name of the module.
        status: How it ended. tuned: it runs on a backend. original kept: nothing beat it. failed: it could not be
            tuned. already tuned: left as it was. not called: the function never called it.
        graphs: The record of each graph that was tuned.
        reason: Why it ended so, where the graphs do not say it.
    """

    name: str
    status: ModuleStatus
    graphs: tuple[GraphReport, ...] = ()
    reason: str | None = None


@dataclass(frozen=True)
class TuneReport:
    """Everything that was seen in one tune call.

    Args:
        modules: One record for each module, in the order of tuning.
        environment: The machine and the versions.
        settings: The arguments and settings of the call, as plain data.
        seconds: Time that the call took.
        warnings: What the user should know about the whole run.
    """

    modules: tuple[ModuleReport, ...]
    environment: Environment
    settings: dict[str, Any] = field(default_factory=dict)
    seconds: float = 0.0
    warnings: tuple[str, ...] = ()

    def to_json(self) -> str:
        """Write the report as JSON; see :meth:`from_json`.

        Artifact paths and other values that are no plain data become strings, tuples inside free-form data lists; a
        report of plain data comes back equal, NaN and infinities included.

        Raises:
            AITuneUserInputError: What a backend or strategy of the user's gave for itself holds itself.
        """
        return to_text({"format_version": FORMAT_VERSION, "report": self})

    @classmethod
    def from_json(cls, text: str | bytes) -> TuneReport:
        """Read a report from what :meth:`to_json` wrote.

        Args:
            text: The JSON text.

        Raises:
            AITuneUserInputError: The text is not JSON, not a report, or comes from a newer format.
        """
        import msgspec

        try:
            data = from_text(text)
        except (TypeError, ValueError, RecursionError) as error:
            raise AITuneUserInputError(
                f"the report is not JSON: {error}; give the text that TuneReport.to_json returned"
            ) from error
        version = data.get("format_version") if isinstance(data, dict) else None
        if version != FORMAT_VERSION:
            raise AITuneUserInputError(
                f"the report has format version {version!r}, this version of aitune reads {FORMAT_VERSION}; "
                f"read it with the version of aitune that wrote it"
            )
        try:
            return msgspec.convert(data.get("report"), cls)
        except msgspec.ValidationError as error:
            raise AITuneUserInputError(f"the text is no tune report: {error}") from error

    def module(self, name: str) -> ModuleReport:
        """Return the record of one module.

        Args:
            name: Name of the module.

        Raises:
            AITuneUserInputError: The report has no such module.
        """
        for module in self.modules:
            if module.name == name:
                return module
        known = ", ".join(repr(module.name) for module in self.modules) or "none"
        raise AITuneUserInputError(f"the report has no module {name!r}; its modules: {known}")

    def winner(self, module: str, graph: str | None = None) -> CandidateOutcome | None:
        """Return the outcome of what a module now runs on.

        Args:
            module: Name of the module.
            graph: Name of the graph; needed for a module with several.

        Returns:
            The chosen outcome, which may be the original module's; ``None`` where nothing was chosen.

        Raises:
            AITuneUserInputError: There is no such module or graph, or the module has several graphs and none is named.
        """
        chosen = self._graph(module, graph)
        return None if chosen is None else winner_of(chosen)

    def front(self, module: str, graph: str | None = None) -> tuple[FrontPoint, ...]:
        """Return speed and accuracy of every accepted candidate of a module, the fastest first.

        Args:
            module: Name of the module.
            graph: Name of the graph; needed for a module with several.

        Returns:
            One point each; those that are not beaten are the choices worth thinking about.

        Raises:
            AITuneUserInputError: There is no such module or graph, or the module has several graphs and none is named.
        """
        chosen = self._graph(module, graph)
        return () if chosen is None else speed_accuracy_front(chosen)

    def explain(
        self, candidate: str, model: Any = None, inputs: Any = None, *, module: str | None = None,
        graph: str | None = None,
    ) -> Explanation:  # fmt: skip
        """Say why a candidate was not accepted: which outputs and calls disagree, and where inside the graph.

        The report is plain data, so the last part needs the module and a call that disagrees. In the process that
        tuned, both are found by themselves while the wrapped module lives; elsewhere give them. Then the candidate is
        built anew with intermediate values as outputs, some times over; that takes a few builds' time.

        Args:
            candidate: Key or description of a candidate, as the table shows it.
            model: The module that was tuned, wrapped or not; ``None`` takes the living one of that name.
            inputs: A call of the module that disagrees: a tensor, a tuple or a dict of arguments; ``None`` takes the
                call that the candidate was rejected for, where this process made it.
            module: Name of the module, where several have such a candidate.
            graph: Name of the graph, where several have such a candidate.

        Raises:
            AITuneUserInputError: There is no such candidate or more than one, or the module or the inputs do not fit.
        """
        from aitune.torch.report.explanation import explain_kept, living_module, localize_outcome
        from aitune.torch.tune_strategy.disagreements import disagreements

        found = [
            (part.name, report, outcome)
            for part in self.modules
            for report in part.graphs
            for outcome in report.outcomes
            if candidate in (outcome.key, outcome.description)
            and module in (None, part.name)
            and graph in (None, report.graph)
        ]
        if not found:
            every = {outcome.description for part in self.modules for g in part.graphs for outcome in g.outcomes}
            known = ", ".join(repr(name) for name in sorted(every)) or "none"
            raise AITuneUserInputError(f"the report has no candidate {candidate!r} there; its candidates: {known}")
        if len(found) > 1:
            places = ", ".join(f"module={name!r}, graph={report.graph!r}" for name, report, _ in found)
            raise AITuneUserInputError(f"several graphs have a candidate {candidate!r}; name one of: {places}")
        name, report, outcome = found[0]
        if model is None and inputs is None:
            return explain_kept(name, report, outcome)
        model = living_module(name) if model is None else model
        inputs = disagreements.find(name, report.graph, outcome) if inputs is None else inputs
        if model is None or inputs is None:
            missing = "model=, the module that was tuned" if model is None else "inputs=, a call that disagrees"
            raise AITuneUserInputError(f"explain cannot look inside of the graph without {missing}; give it, too")
        return localize_outcome(report, outcome, model, inputs)

    def _graph(self, module: str, graph: str | None) -> GraphReport | None:
        graphs = self.module(module).graphs
        names = ", ".join(repr(report.graph) for report in graphs) or "none"
        if graph is None and len(graphs) > 1:
            raise AITuneUserInputError(f"module {module!r} has several graphs; name one of {names}")
        chosen = [report for report in graphs if graph is None or report.graph == graph]
        if graph is not None and not chosen:
            raise AITuneUserInputError(f"module {module!r} has no graph {graph!r}; its graphs: {names}")
        return chosen[0] if chosen else None

    def summary(self) -> str:
        """Say in one line for each module (and each of several graphs) what became of it."""
        return "\n".join(printable(line) for module in self.modules for line in _module_lines(module))

    def table(self, width: int = 120) -> str:
        """Write the whole report as plain text: for each graph a row per candidate, then the winner and why.

        Args:
            width: Characters in a line, at least 80.

        Returns:
            Lines of plain text without colours, none longer than ``width``; what would steer a terminal is escaped.

        Raises:
            AITuneUserInputError: The width is no integer, or too small for the columns.
        """
        width = integer_at_least(width, "the width of the table", _LEAST_WIDTH)
        sections = [wrap_text(self.environment.describe(), width, "  ")]
        for module in self.modules:
            reason = f": {shorten(module.reason)}" if module.reason else ""
            heading = f"Module {module.name!r}: {module.status}{reason}"
            sections.append(wrap_text(heading, width, "  "))
            for graph in module.graphs:
                seconds = get_metric("duration").format(graph.seconds)
                sections.append(
                    wrap_text(f"Graph {graph.graph!r} ({seconds})", width) + "\n" + graph_table(graph, width)
                )
        sections.extend(wrap_text(f"Warning: {shorten(warning)}", width, "  ") for warning in self.warnings)
        sections.append(f"Total: {get_metric('duration').format(self.seconds)}")
        return "\n\n".join(sections)


def _module_lines(module: ModuleReport) -> list[str]:
    reason = f": {shorten(module.reason)}" if module.reason else ""
    if not module.graphs:
        return [f"{module.name}: {module.status}{reason}"]
    labels = [""] if len(module.graphs) == 1 else [f" [{graph.graph}]" for graph in module.graphs]
    # A graph that could not be tuned says why itself.
    reasons = ["" if graph.reason == module.reason else reason for graph in module.graphs]
    return [
        f"{module.name}{label}: {module.status}{why}; {graph_sentence(graph)}"
        for label, why, graph in zip(labels, reasons, module.graphs, strict=True)
    ]
