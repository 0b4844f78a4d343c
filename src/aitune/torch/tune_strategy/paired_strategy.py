"""What the shipped profiling strategies share: sweeps of what is served, and decisions by paired comparison."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, replace
from typing import Any

from aitune.exceptions import ProfilingError
from aitune.torch.backend.backend import Backend
from aitune.torch.config import config
from aitune.torch.module.graph_spec import GraphSpec
from aitune.torch.module.sample import Sample
from aitune.torch.module.tuned_module import TunedModule
from aitune.torch.task.outcome import BatchMeasurement, CandidateOutcome, PairedComparison
from aitune.torch.task.playoff import Contestant, PlayoffConfig, playoff, screen
from aitune.torch.task.profiling.config import ProfilingConfig
from aitune.torch.task.profiling.sweep import profile
from aitune.torch.tune_strategy.candidate import as_served
from aitune.torch.tune_strategy.graph_job import GraphJob
from aitune.torch.tune_strategy.profiling_plan import between_neighbours
from aitune.torch.tune_strategy.profiling_result import BASELINE_KEY, BackendProfilingResult, _TuneCandidate
from aitune.torch.tune_strategy.profiling_tune_strategy import ProfilingTuneStrategy
from aitune.torch.tune_strategy.reasons import explain_best, explain_kept, explain_win, warning_of_noise
from aitune.torch.tune_strategy.selection import rank, replace_comparisons, verdict_between
from aitune.torch.tune_strategy.strategy_settings import plain_settings
from aitune.torch.tune_strategy.sweep_result import CutShort, SweepResult, ThroughputResult, is_hopeless
from aitune.torch.tune_strategy.thread_sweep import with_thread_counts
from aitune.torch.tune_strategy.time_plan import screen_seconds
from aitune.utils.validation import boolean

ORIGINAL_NAME = "the original module"
_GRACE_SECONDS = 2.0
_OUT_OF_REACH = 1.25
"""Another batch size between two powers of two does not make up for this."""


class PairedProfilingStrategy(ProfilingTuneStrategy):
    """A profiling strategy whose decisions are made by paired comparisons of what will be served.

    A candidate replaces the baseline only when the interval of the paired ratio lies above 1 plus the minimum gain; on
    a tie the baseline stays, and between candidates the one that comes first in the list. The metric is the highest
    throughput over the batch sizes; subclasses measure something else. A subclass that overrides :meth:`_is_better`
    decides alone; one whose :meth:`_measure` returns a result that is no :class:`SweepResult` is not compared in pairs.

    Args:
        backends: Candidates in order of preference; ``None`` takes the defaults.
        profiling_config: How candidates are profiled; ``None`` takes the batch sizes of the run, or powers of two.
        sweep_threads: Whether candidates that have threads of their own are also tried with half of the thread budget
            and with one thread.
        kwargs: Arguments of :class:`ProfilingTuneStrategy`.

    Raises:
        AITuneUserInputError: An argument is not usable.
    """

    _metric_label = "throughput"
    _metric_unit = "samples/s"
    _value_fmt = ".2f"

    def __init__(
        self,
        backends: list[Backend] | None = None,
        profiling_config: ProfilingConfig | None = None,
        *,
        sweep_threads: bool = False,
        **kwargs: Any,
    ) -> None:
        self._sweep_threads = boolean(sweep_threads, "sweep_threads")
        super().__init__(backends, profiling_config, **kwargs)

    @property
    def _backends(self) -> list[Backend]:
        """Return explicit candidates or the defaults for the current module, with each number of threads to try."""
        listed = super()._backends
        return with_thread_counts(listed) if self._sweep_threads else listed

    def _reset(self) -> None:
        super()._reset()
        self._served: dict[str, TunedModule] = {}
        self._noticed: dict[str, tuple[str, ...]] = {}
        self._runner_up: _TuneCandidate | None = None

    def _end_run(self) -> None:
        super()._end_run()
        self._served.clear()
        self._runner_up = None

    def _release(self, key: str) -> None:
        self._served.pop(key, None)
        super()._release(key)

    # -- the hooks -------------------------------------------------------------------------------------------------

    def _measure(
        self,
        backend: Backend,
        name: str,
        graph_spec: GraphSpec,
        data: list[Sample],
        profiling_cfg: ProfilingConfig,
    ) -> BackendProfilingResult:
        """Profiles the backend and returns its result."""
        swept = self._sweep(backend, graph_spec, data, profiling_cfg)
        best = _best_of(swept)
        if self._is_worth_refining(best, backend, profiling_cfg):
            sizes = between_neighbours(best.batch_size, [measurement.batch_size for measurement in swept])
            if sizes:
                between = self._sweep(backend, graph_spec, data, replace(profiling_cfg, batch_sizes=sizes))
                swept = tuple(sorted((*swept, *between), key=lambda measurement: measurement.batch_size))
                self._keep_measurements(backend, swept)
                best = _best_of(swept)
        return ThroughputResult(best.batch_size, swept, self._key_of(backend))

    def _is_better(self, result: BackendProfilingResult, other: BackendProfilingResult) -> bool:
        """Returns True when `result` is clearly better: by their paired comparison, else by their intervals."""
        verdict = result.verdict_against(other) if isinstance(result, SweepResult) else None
        return result.bounds[0] > other.bounds[1] if verdict is None else verdict == "faster"

    def _speedup(self, result: BackendProfilingResult, baseline_result: BackendProfilingResult) -> float:
        """Returns the speedup of `result` relative to `baseline_result` (>1 is faster)."""
        return result.metric / baseline_result.metric

    # -- measuring -------------------------------------------------------------------------------------------------

    def _sweep(
        self, backend: Backend, graph_spec: GraphSpec, data: Sequence[Sample], profiling_cfg: ProfilingConfig
    ) -> tuple[BatchMeasurement, ...]:
        """Measure what will be served, the guard included, at each batch size of the graph's range."""
        smallest = graph_spec.get_min_batch_size()
        sizes = [size for size in profiling_cfg.batch_sizes if size >= smallest] or [smallest]
        stop = CutShort(
            profiling_cfg.profiling_stop,
            lambda swept: self._is_pointless(backend, swept),
            "larger batch sizes cannot win any more",
        )
        key = self._key_of(backend)
        known = {m.batch_size: m for m in self._already_measured(backend) if m.batch_size in sizes}
        missing = [size for size in sizes if size not in known]
        if missing:
            results = profile(
                self._callable(backend, graph_spec),
                _batch_maker(graph_spec, data),
                replace(profiling_cfg, batch_sizes=missing, profiling_stop_strategy=stop),
                device=backend.device,
                copy_inputs=self._copy_inputs,
                deadline=self._deadline(),
                machine=self._context.machine,
            )
            self._noticed[key] = (*self._noticed.get(key, ()), *results.notes())
            self._check_served(backend, data[0])
            known |= {measurement.batch_size: measurement for measurement in results.measurements()}
        self._keep_measurements(backend, [known[size] for size in sorted(known)])
        return self._measurements[key]

    def _already_measured(self, backend: Backend) -> Sequence[BatchMeasurement]:
        """Return what this run knows of a backend: the search for the largest batch size ran on the original."""
        if backend is not self._baseline_backend or self._find_max_batch_size_backend_class is not None:
            return ()
        return () if self.batch_size_search is None else self.batch_size_search.measurements()

    def _search_config(self, batch_size: int) -> ProfilingConfig:
        given = self._profiling_config
        return super()._search_config(batch_size) if given is None else replace(given, batch_sizes=[batch_size])

    def _is_worth_refining(self, best: BatchMeasurement, backend: Backend, profiling_cfg: ProfilingConfig) -> bool:
        """Say whether batch sizes between powers of two are looked at: where the run is free to, and it may win."""
        is_free = self._context.batch_sizes is None and self._profiling_config is None and profiling_cfg.batching
        if not is_free or self._context.is_over():
            return False
        others = [
            _best_of(found) for key, found in self._measurements.items() if key != self._key_of(backend) and found
        ]
        return all(other.throughput <= _OUT_OF_REACH * best.throughput for other in others)

    def _record(self, job: GraphJob, outcome: CandidateOutcome, *, finished: bool = True) -> None:
        noticed = [note for note in self._noticed.get(outcome.key, ()) if note not in outcome.notes]
        super()._record(job, replace(outcome, notes=(*outcome.notes, *noticed)), finished=finished)

    def _is_pointless(self, backend: Backend, swept: Sequence[BatchMeasurement]) -> bool:
        """Say whether larger batch sizes need not be measured; with a time budget no time goes to the hopeless."""
        if self._context.deadline is None or backend is self._baseline_backend:
            return False
        best: dict[int, BatchMeasurement] = {}
        for key, found in self._measurements.items():
            for measurement in found if key != backend.key() else ():
                fastest = best.setdefault(measurement.batch_size, measurement)
                best[measurement.batch_size] = min(fastest, measurement, key=lambda m: m.median_ms)
        return is_hopeless(swept, best)

    def _deadline(self) -> float | None:
        """Return when a measurement has to end: the original's, and that of what was built and checked, gets a moment.

        Without a figure of the original the run could not even say that it stays, and a build without one was for
        nothing; after it no other is begun.
        """
        deadline = self._context.deadline
        return None if deadline is None else max(deadline, self._context.machine.now() + _GRACE_SECONDS)

    @property
    def _copy_inputs(self) -> bool:
        return self._references is not None and self._references.modifies_inputs

    def _callable(self, backend: Backend, graph_spec: GraphSpec) -> Callable[..., Any]:
        assert self._job is not None, "a backend is measured only during a run"
        if backend.runs_original:
            return self._job.module
        key = self._key_of(backend)
        if key not in self._served:
            self._served[key] = as_served(self._job.module, graph_spec, backend)
        return self._served[key].module

    def _check_served(self, backend: Backend, sample: Sample) -> None:
        """Make sure that the time was the backend's: what it does not answer itself, the original module does."""
        served = self._served.get(self._key_of(backend))
        fallbacks = served.stats().fallbacks if served is not None else {}
        if not fallbacks:
            return
        try:
            backend.infer(*sample.args, **sample.kwargs)
        except Exception as error:
            raise ProfilingError(
                f"{backend.describe()} raised {type(error).__name__} while it was measured: {error}"
            ) from error
        raise ProfilingError(
            f"{backend.describe()} did not answer {sum(fallbacks.values())} calls itself ({', '.join(fallbacks)}), "
            f"so they cannot be counted for it"
        )

    # -- paired comparisons ----------------------------------------------------------------------------------------

    def _playoff_config(self) -> PlayoffConfig:
        return self._context.playoff or PlayoffConfig(
            minimum_gain=config.minimum_gain, num_threads=config.num_threads, seed=self._context.seed
        )

    def _contestant(self, candidate: _TuneCandidate, job: GraphJob) -> Contestant:
        size = candidate.result.selected_batch_size
        return Contestant(
            self._key_of(candidate.backend),
            self._callable(candidate.backend, job.graph_spec),
            _batch_maker(job.graph_spec, job.data)(size),
            size,
            self._copy_inputs,
            name=self._names[self._key_of(candidate.backend)],
        )

    @property
    def _names(self) -> dict[str, str]:
        described = {key: outcome.description for key, outcome in self._outcomes.items()}
        return {**described, BASELINE_KEY: ORIGINAL_NAME}

    def _add_comparisons(self, comparisons: Iterable[PairedComparison], candidates: Iterable[_TuneCandidate]) -> None:
        self._comparisons = list(replace_comparisons(self._comparisons, comparisons))
        for candidate in candidates:
            if isinstance(candidate.result, SweepResult):
                candidate.result.paired = tuple(self._comparisons)

    def _screen(self, candidate: _TuneCandidate, job: GraphJob) -> None:
        baseline = self._baseline_candidate()
        if baseline is None or not _are_swept([candidate, baseline]):
            return
        comparison = screen(
            self._contestant(candidate, job),
            self._contestant(baseline, job),
            self._playoff_config(),
            seconds=screen_seconds(self._context.seconds_left()),
            device=candidate.backend.device,
            deadline=self._deadline(),
            machine=self._context.machine,
        )
        if comparison.failed is not None:
            raise ProfilingError(comparison.reason)
        self._add_comparisons([comparison], [candidate, baseline])

    # -- the choice ------------------------------------------------------------------------------------------------

    def _shortlist(self, candidates: Sequence[_TuneCandidate]) -> list[_TuneCandidate]:
        """Sort candidates best first, and leave out those that were slower than the baseline side by side.

        Where neither of two is clearly better the figures decide: their intervals were measured apart and say little,
        and the playoff is still to come.
        """
        opponent = self._opponent
        standing = [
            candidate
            for candidate in candidates
            if opponent is None or not self._is_better_candidate(opponent, candidate)
        ]
        promising = sorted(standing, key=lambda candidate: -self._promise(candidate, candidates[0]))
        return rank(promising, self._is_better_candidate, opponent)

    def _promise(self, candidate: _TuneCandidate, reference: _TuneCandidate) -> float:
        key = self._key_of(candidate.backend)
        screened = [c.speedup for c in self._comparisons if (c.candidate, c.opponent) == (key, BASELINE_KEY)]
        return screened[0] if screened else self._speedup_of(candidate.result, reference.result)

    def _choose_finalist(self, finalists: Sequence[_TuneCandidate], job: GraphJob) -> _TuneCandidate | None:
        opponent = self._opponent
        everyone = [*finalists, *([] if opponent is None else [opponent])]
        if len(everyone) > 1 and _are_swept(everyone):
            finalists = self._play_off(finalists, opponent, job)
        noise = warning_of_noise(self._comparisons, BASELINE_KEY)
        if noise is not None:
            self._warn(job.name, job.graph_spec, noise)
        ranked = rank(finalists, self._is_better_candidate, opponent)
        rivals = [f for f in ranked[1:] if opponent is None or self._is_better_candidate(f, opponent)]
        self._runner_up = next(iter(rivals), None)
        return next(iter(ranked), None)

    def _play_off(
        self, finalists: Sequence[_TuneCandidate], opponent: _TuneCandidate | None, job: GraphJob
    ) -> list[_TuneCandidate]:
        """Compare the finalists with each other and the opponent; return those that did not fail meanwhile."""
        for finalist in finalists:
            self._say_stage(job, finalist.backend.describe(), "playoff")
        contestants = [self._contestant(finalist, job) for finalist in finalists]
        judge = contestants.pop() if opponent is None else self._contestant(opponent, job)
        decided = playoff(
            contestants,
            judge,
            self._playoff_config(),
            device=finalists[0].backend.device,
            deadline=self._context.deadline,
            machine=self._context.machine,
        )
        self._add_comparisons(decided, [*finalists, *([] if opponent is None else [opponent])])
        standing = [finalist for finalist in finalists if self._came_through(finalist, decided, job)]
        for finalist in standing:
            self._update_perf_result(finalist)
        return standing

    def _came_through(self, finalist: _TuneCandidate, decided: Iterable[PairedComparison], job: GraphJob) -> bool:
        key = self._key_of(finalist.backend)
        reason = next((c.reason for c in decided if c.failed == key), None)
        try:
            if reason is not None:
                raise ProfilingError(reason)
            self._check_served(finalist.backend, job.data[0])
        except ProfilingError as error:
            self._drop(self._outcomes[key], error, job)
            return False
        return True

    def _update_perf_result(self, candidate: _TuneCandidate) -> None:
        baseline = self._baseline_candidate()
        for result in self.perf_validation_results:
            if baseline is not None and result.backend_description == candidate.backend.describe():
                result.passed = self._is_better_candidate(candidate, baseline)

    # -- words -----------------------------------------------------------------------------------------------------

    def _why_won(self, best: _TuneCandidate) -> str:
        key, opponent = self._key_of(best.backend), self._opponent
        runner_up = None if self._runner_up is None else self._key_of(self._runner_up.backend)
        if opponent is None:
            return explain_best(key, runner_up, self._comparisons, self._names)
        if verdict_between(key, BASELINE_KEY, self._comparisons) is None:
            return super()._why_won(best)
        return explain_win(key, runner_up, self._comparisons, self._names)

    def _why_kept(self, best: _TuneCandidate | None, baseline: _TuneCandidate) -> str:
        measured = [key for key, outcome in self._outcomes.items() if outcome.status == "ok" and key != BASELINE_KEY]
        if not measured or not self._comparisons:
            return super()._why_kept(best, baseline)
        return explain_kept(measured, BASELINE_KEY, self._comparisons, self._names)

    def to_json_dict(self) -> dict[str, Any]:
        """Returns config dict for the strategy."""
        return {
            **super().to_json_dict(),
            "playoff": plain_settings(asdict(self._playoff_config())),
            "sweep_threads": self._sweep_threads,
        }


def _best_of(swept: Iterable[BatchMeasurement]) -> BatchMeasurement:
    return max(swept, key=lambda measurement: measurement.throughput)


def _are_swept(candidates: Iterable[_TuneCandidate]) -> bool:
    return all(isinstance(candidate.result, SweepResult) for candidate in candidates)


def _batch_maker(graph_spec: GraphSpec, data: Sequence[Sample]) -> Callable[[int], Sample]:
    """Return what makes the call of a batch size: a recorded one of that size, else the one nearest to it, resized."""

    def make(batch_size: int) -> Sample:
        nearest = min(data, key=lambda sample: abs(graph_spec.batch_size_of(sample) - batch_size))
        return graph_spec.make_batch(*nearest, batch_size)

    return make
