"""``ait.tune``: record, tune, report."""

from __future__ import annotations

import itertools
import logging
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from aitune.events import Emitter, Event, GraphFinished, Listener, RunFinished, RunStarted, SampleRecorded, Warned
from aitune.exceptions import AITuneError, AITuneUserInputError, TuningError
from aitune.torch.backend.export import shared_exports
from aitune.torch.config import config
from aitune.torch.data import DEFAULT_BATCH_SIZES, Batch, check_batch_sizes, iterate_batches
from aitune.torch.module.eval_mode import eval_mode
from aitune.torch.module.preserved_state import preserved_state
from aitune.torch.module.registry import module_registry
from aitune.torch.module.wrapper_module import Module, ModuleState, Tuner
from aitune.torch.recording_time import RecordingTime
from aitune.torch.report.console import ConsoleListener
from aitune.torch.report.environment import gather_environment
from aitune.torch.report.log_listener import LogListener
from aitune.torch.report.tune_report import ModuleReport, TuneReport
from aitune.torch.task.accuracy_budget import AccuracyBudget
from aitune.torch.task.input_factory import InputFactory
from aitune.torch.task.outcome import GraphReport
from aitune.torch.tune_arguments import check_device, check_listeners, check_strategy, check_values, hard_to_build
from aitune.torch.tune_strategy.context import TuningContext
from aitune.torch.tune_strategy.cost_history import FILE_NAME, CostHistory
from aitune.torch.tune_strategy.max_throughput_strategy import MaxThroughputStrategy
from aitune.torch.tune_strategy.profiling_tune_strategy import BASELINE_KEY
from aitune.torch.tune_strategy.strategy_settings import accuracy_settings, check_accuracy_arguments
from aitune.torch.tune_strategy.tune_strategy import TuneStrategy
from aitune.torch.tuned_function import advice_for_uncalled, check_function, run_on_batch, why_nothing_was_done
from aitune.utils.error_text import error_reason
from aitune.utils.external_logging import quiet_external_logging
from aitune.utils.validation import boolean, positive_seconds

logger = logging.getLogger(__name__)


def tune(  # noqa: PLR0913, PLR0917 - the published signature, and our additions by keyword
    func: Callable[..., Any],
    dataset: Any,
    batch_sizes: Sequence[int] | None = None,
    max_num_batches_per_batch_size: int | None = None,
    device: torch.device | str | None = None,
    dry_run: bool = False,
    disable_external_logging: bool = False,
    clear_cache: bool = False,
    ignore_failing_modules: bool = True,
    *,
    strategy: TuneStrategy | None = None,
    time_budget: float | None = None,
    accuracy_budget: AccuracyBudget | None = None,
    input_factory: InputFactory | None = None,
    retune: bool = False,
    listeners: Iterable[Listener] = (),
) -> TuneReport:
    """Find the fastest correct way to run every wrapped module that a function calls, and let the module run on it.

    The function is run on the dataset while the modules record their calls. Then each module is tuned: its candidates
    are built, compared with the original value by value, and measured side by side with it. Modules that are tuned
    already stay as they are. After an error or Ctrl-C every module is as it was before.

    Args:
        func: What runs the modules: a wrapped module itself, or any function or pipeline that calls some.
        dataset: Representative inputs: a tensor (one sample without batch axis), a sequence of tensors, dicts, tuples
            or strings, a torch ``Dataset``, a ``DataLoader``, a :class:`DataLoaderFactory`, or a function that takes a
            batch size and returns batches. A dict becomes keyword arguments of ``func``, a tuple positional ones.
        batch_sizes: Batch sizes to record and to tune for; at least two show which axes count a batch. ``None``
            records 1 and 2 and looks for the batch size up to which throughput grows.
        max_num_batches_per_batch_size: Most batches of one size that are run; ``None`` runs all.
        device: Device to tune for; by default each module's own, and no module is moved.
        dry_run: Only record, and say what would be tried.
        disable_external_logging: Whether exporters and compilers may log errors alone meanwhile.
        clear_cache: Whether the modules' folders in the cache are emptied first.
        ignore_failing_modules: Whether a module that cannot be tuned is left as it was and reported; otherwise its
            error is raised.
        strategy: Strategy for modules that have none of their own; :class:`MaxThroughputStrategy` by default.
        time_budget: Seconds for the whole call; candidates that it leaves no time for are reported as skipped.
        accuracy_budget: What candidates that give precision away have to keep; with one they are tried as well.
        input_factory: Makes calls of a module for wanted sizes, as ``input_factory({"batch0": 3, "dim0": 17})``, where
            calls made up from the recorded ones would not be valid; for several modules give each a strategy with its
            own.
        retune: Whether modules that are tuned already are tuned again.
        listeners: Receive the events of the run, beside the progress on a terminal and the log.

    Returns:
        Everything that was seen: what was tried, how it did, what was chosen and why.

    Raises:
        AITuneUserInputError: An argument is not usable, the dataset is empty or raises, no module is wrapped, or the
            function raises.
        AITuneError: A module could not be tuned, and ``ignore_failing_modules`` is not set.
    """
    run = _Run(
        func=func,
        batch_sizes=None if batch_sizes is None else check_batch_sizes(batch_sizes),
        device=check_device(device),
        dry_run=boolean(dry_run, "dry_run"),
        retune=boolean(retune, "retune"),
        ignore_failing_modules=boolean(ignore_failing_modules, "ignore_failing_modules"),
        strategy=check_strategy(strategy),
        time_budget=None if time_budget is None else positive_seconds(time_budget, "time_budget"),
        accuracy_budget=accuracy_budget,
        input_factory=input_factory,
    )
    check_accuracy_arguments(accuracy_budget, input_factory)
    heard = check_listeners(listeners)
    clear_cache = boolean(clear_cache, "clear_cache")
    quiet = boolean(disable_external_logging, "disable_external_logging")
    check_function(func)
    batches = iterate_batches(dataset, run.batch_sizes, max_num_batches_per_batch_size, run.recording_time.goes_on)
    with ExitStack() as stack:
        stack.enter_context(module_registry().one_run_at_a_time())
        stack.enter_context(quiet_external_logging(quiet))
        stack.enter_context(_thread_budget(config.num_threads))
        console = stack.enter_context(ConsoleListener())
        run.emitter = Emitter([run.collected, console, LogListener(), *heard])
        return run.execute(batches, clear_cache)


class _GraphCollector:
    """Keeps the reports of the graphs of the module that is being tuned; two modules may have one name."""

    def __init__(self) -> None:
        self.reports: list[GraphReport] = []
        self.warnings: list[str] = []

    def on_event(self, event: Event) -> None:
        if isinstance(event, GraphFinished):
            self.reports.append(event.report)
        elif isinstance(event, Warned) and event.graph is None:
            self.warnings.append(event.message)


@dataclass
class _Run:
    func: Callable[..., Any]
    batch_sizes: tuple[int, ...] | None
    device: torch.device | None
    dry_run: bool
    retune: bool
    ignore_failing_modules: bool
    strategy: TuneStrategy | None
    time_budget: float | None
    accuracy_budget: AccuracyBudget | None
    input_factory: InputFactory | None
    emitter: Emitter = field(default_factory=Emitter)
    collected: _GraphCollector = field(default_factory=_GraphCollector)
    began: float = field(default_factory=time.monotonic)

    def __post_init__(self) -> None:
        self.recording_time = RecordingTime(self.time_budget, self.began)

    def execute(self, batches: Iterable[Batch], clear_cache: bool) -> TuneReport:
        wrapped = module_registry().modules()
        if not wrapped:
            raise AITuneUserInputError(
                "no module is wrapped, so there is nothing to tune; wrap one first: model = ait.Module(model, 'name')"
            )
        pending = [module for module in wrapped if self.retune or module.state is not ModuleState.TUNED]
        already = [module for module in wrapped if module not in pending]
        if clear_cache:
            for module in pending:
                shutil.rmtree(module.cache_dir, ignore_errors=True)
        names = tuple(module.name for module in pending)
        self.emitter.emit(RunStarted(names, self.batch_sizes or DEFAULT_BATCH_SIZES))
        reports = [ModuleReport(m.name, "already tuned", reason="give retune=True to tune it again") for m in already]
        if not pending:
            self._say_that_nothing_is_left(already, batches)
        else:
            with ExitStack() as stack:
                for module in pending:
                    stack.enter_context(module.unchanged_on_error())
                    stack.enter_context(self._eval_mode(module))
                self._record(pending, batches)
                reports += [self._tune_module(module) for module in pending]
        return self._report(_with_names_of_their_own(reports))

    def _say_that_nothing_is_left(self, tuned: Sequence[Module], batches: Iterable[Batch]) -> None:
        with ExitStack() as stack:
            for module in tuned:
                stack.enter_context(preserved_state(module.original))
            for batch in itertools.islice(batches, 1):
                self._warn(why_nothing_was_done(self.func, batch, tuned))

    # -- recording -------------------------------------------------------------------------------------------------

    @contextmanager
    def _eval_mode(self, module: Module) -> Iterator[None]:
        original = module.original
        training = [part for part in original.modules() if part.training]
        if original.training:
            self._warn(
                f"{module.name} is in training mode; it is tuned in eval mode, and in training mode its calls run on "
                f"the original: call {module.name}.eval() before inference",
                module,
            )
        elif training:
            named = next(name for name, part in original.named_modules() if part.training)
            self._warn(
                f"{module.name}: its part {named!r} is in training mode; it is tuned in eval mode, and calls run on "
                f"the original until {module.name}.eval() is called",
                module,
            )
        with eval_mode(original):
            yield

    def _record(self, pending: Sequence[Module], batches: Iterable[Batch]) -> None:
        for module in pending:
            module.enable_recording(force=True)
        with ExitStack() as stack:
            for module in pending:
                # A module that counts its calls must not count these.
                stack.enter_context(preserved_state(module.original))
            run = (batch for batch in batches if self.recording_time.is_run(batch.batch_size))
            for count, batch in enumerate(run, start=1):
                run_on_batch(self.func, batch, pending)
                self.emitter.emit(SampleRecorded(batch.batch_size, count))
        if self.recording_time.is_cut_short:
            self._warn(
                f"batches of the dataset were not run: a quarter of time_budget={self.time_budget:g} s had gone to "
                f"recording; give more time, or a smaller dataset"
            )

    # -- tuning ----------------------------------------------------------------------------------------------------

    def _tune_module(self, module: Module) -> ModuleReport:
        self.collected.reports.clear()
        recording = module.module
        if module.state is not ModuleState.RECORDING:
            error = TuningError(
                f"{module.name} is {module.state.value} after the function ran, not recording: its state was changed "
                f"meanwhile; leave wrapped modules as they are while ait.tune runs"
            )
            return self._failed(module, error)
        if not recording.num_calls:
            module.cancel_recording()
            advice = advice_for_uncalled(self.func)
            self._warn(f"{module.name} was not called by the function, so it was not tuned{advice}", module)
            return ModuleReport(module.name, "not called", reason=f"the function never called it{advice}")
        try:
            check_values(module.name, module.original)
        except AITuneUserInputError as error:
            return self._failed(module, error)
        for problem in (*hard_to_build(module.original), *module.recording_problems):
            self._warn(f"{module.name}: {problem}", module)
        self._warn_about_axes(module)
        strategy = self.strategy if self.strategy is not None else MaxThroughputStrategy()
        try:
            with self._context_for(module, strategy), shared_exports(), self._every_graph_reported(module):
                module.tune(self.device, strategy, self.dry_run)
        except Exception as error:
            return self._failed(module, error)
        graphs = tuple(self.collected.reports)
        if self.dry_run:
            return ModuleReport(module.name, "original kept", graphs, "dry run: nothing was built")
        kept = all(report.winner in (BASELINE_KEY, None) for report in graphs)
        return ModuleReport(module.name, "original kept" if kept else "tuned", graphs)

    @contextmanager
    def _every_graph_reported(self, module: Module) -> Iterator[None]:
        """Give graphs a report as well that failed before a strategy began with them, and keep reports in order."""
        specs = {spec.name: spec for spec in module.graph_specs}
        try:
            yield
        finally:
            reported = {report.graph for report in self.collected.reports}
            for name, error in module.graph_errors.items():
                if name not in reported:
                    report = GraphReport(
                        module.name, name, specs[name].describe(), {}, (), (), None, error_reason(error), seconds=0.0
                    )
                    self.emitter.emit(GraphFinished(module.name, name, report))
            names = list(specs)
            self.collected.reports.sort(key=lambda report: names.index(report.graph))

    def _failed(self, module: Module, error: Exception) -> ModuleReport:
        if not self.ignore_failing_modules:
            if isinstance(error, AITuneError):
                raise error
            raise TuningError(f"{module.name} could not be tuned: {type(error).__name__}: {error}") from error
        module.cancel_recording()
        logger.debug("%s could not be tuned", module.name, exc_info=error)
        reason = error_reason(error)
        self._warn(f"{module.name} could not be tuned and is left as it was: {reason}", module)
        return ModuleReport(module.name, "failed", tuple(self.collected.reports), reason)

    @contextmanager
    def _context_for(self, module: Module, default: TuneStrategy) -> Iterator[None]:
        context = TuningContext(
            emitter=self.emitter,
            batch_sizes=self.batch_sizes,
            deadline=None if self.time_budget is None else self.began + self.time_budget,
            accuracy_budget=self.accuracy_budget,
            input_factory=self.input_factory,
            seed=config.seed,
            cost_history=CostHistory(config.resolve_cache_dir() / FILE_NAME),
        )
        strategies = [s for s in (default, *_own_strategies(module)) if isinstance(s, TuneStrategy)]
        for strategy in strategies:
            strategy.use_context(context)
        try:
            yield
        finally:
            for strategy in strategies:
                strategy.use_context(TuningContext())

    def _warn_about_axes(self, module: Module) -> None:
        sizes = self.batch_sizes or DEFAULT_BATCH_SIZES
        if len(set(sizes)) == 1 and not module.dynamic_shapes:
            self._warn(
                f"{module.name}: only batch size {sizes[0]} was recorded, so every axis that did not vary is fixed; "
                f"give two batch sizes to tune for a range",
                module,
            )

    # -- ending ----------------------------------------------------------------------------------------------------

    def _warn(self, message: str, module: Module | None = None) -> None:
        self.emitter.emit(Warned(message, None if module is None else module.name))

    def _report(self, reports: Sequence[ModuleReport]) -> TuneReport:
        report = TuneReport(
            modules=tuple(reports),
            environment=gather_environment(),
            settings={
                "batch_sizes": None if self.batch_sizes is None else list(self.batch_sizes),
                "device": None if self.device is None else str(self.device),
                "dry_run": self.dry_run,
                "retune": self.retune,
                "time_budget": self.time_budget,
                "num_threads": torch.get_num_threads(),
                "seed": config.seed,
                "minimum_gain": config.minimum_gain,
                "accuracy_budget": accuracy_settings(self.accuracy_budget),
            },
            seconds=time.monotonic() - self.began,
            warnings=tuple(self.collected.warnings),
        )
        self.emitter.emit(RunFinished(report))
        return report


def _own_strategies(module: Module) -> list[Tuner]:
    several = module.strategies
    listed = [] if several is None else list(several.values() if hasattr(several, "values") else several)
    return [*([module.strategy] if module.strategy is not None else []), *listed]


def _with_names_of_their_own(reports: Sequence[ModuleReport]) -> list[ModuleReport]:
    """Tell modules of one name apart: the newest keeps it, as a name passes to the newer module."""
    named: list[ModuleReport] = []
    taken = {report.name for report in reports}
    seen: set[str] = set()
    for report in reversed(reports):
        name = report.name
        if name in seen:
            name = next(n for n in (f"{report.name} (older {k})" for k in itertools.count(1)) if n not in taken)
        taken.add(name)
        seen.add(report.name)
        named.append(replace(report, name=name))
    return named[::-1]


@contextmanager
def _thread_budget(num_threads: int | None) -> Iterator[None]:
    before = torch.get_num_threads()
    try:
        if num_threads is not None:
            torch.set_num_threads(num_threads)
        yield
    finally:
        if num_threads is not None:
            torch.set_num_threads(before)
