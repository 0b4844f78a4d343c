"""What was learnt about the candidates of one graph: frozen, plain data.

Everything here can be written as JSON, sent to another process, and written by hand in a test. Units: latency in ms,
throughput in samples/s, durations in s.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

Status = Literal["ok", "unavailable", "skipped", "failed", "rejected"]
"""ok: built, agrees, measured. unavailable: cannot run here. skipped: not tried. failed: raised. rejected: wrong."""

Stage = Literal["availability", "build", "check", "measure"]

Verdict = Literal["faster", "slower", "tie", "undecided"]


_WIDEST_USABLE = 16.0
"""Times that the upper end of an interval of a ratio may be above the lower one: four times either way."""

TOO_FEW_PAIRS = "too few pairs to know"
"""Stands in place of an interval that is too wide to say anything."""


def is_too_wide(low: float, high: float) -> bool:
    """Say whether an interval of a ratio, both ends above 0, is so wide that it says nothing."""
    return high >= _WIDEST_USABLE * low


@dataclass(frozen=True)
class Rejection:
    """Why an output does not agree with the reference.

    Args:
        check: What was compared: ``"structure"``, ``"type"``, ``"dtype"``, ``"shape"``, ``"finite"``, ``"value"``,
            ``"state"``, ``"global state"``, ``"repeat"``, ``"input modified"``, ``"aliasing"``,
            ``"row independence"``, ``"random"``, ``"metric"``, ``"raised"`` where a later
            call raised, or ``"refused"`` where the original raises and the candidate answers.
        output: Which output, as Python would write it.
        index: Which element, where the check is about one.
        got: What the candidate gave.
        expected: What the reference is.
        allowed: How far they may be apart.
        where: The call that showed it: ``"sample 3"``, ``"corner batch0=1, dim0=7"``.
    """

    check: str
    output: str
    index: tuple[int, ...] | None
    got: str
    expected: str
    allowed: str
    where: str

    def __str__(self) -> str:
        place = f"{self.output}{list(self.index)}" if self.index is not None else self.output
        return (
            f"{self.check} differs at {place} ({self.where}): got {self.got}, expected {self.expected}, "
            f"allowed {self.allowed}"
        )


@dataclass(frozen=True)
class OutputAgreement:
    """How far one output tensor was from the reference, the worst over all calls that were compared.

    Args:
        output: Which output, as Python would write it.
        relative_l2: ``|out - ref| / |ref|``, whole tensor and row by row.
        relative_max: Largest absolute error over the largest ``|ref|``.
        cosine: Smallest cosine between output and reference; not decisive.
        noise: Rounding noise of the module itself as relative L2, where a float64 run gave it.
        allowed: Largest relative L2 that passes; ``None`` where a budget limits something else.
    """

    output: str
    relative_l2: float
    relative_max: float
    cosine: float | None
    noise: float | None
    allowed: float | None


@dataclass(frozen=True)
class Agreement:
    """Result of comparing one candidate with the original module.

    Args:
        passed: Whether every compared call agreed.
        outputs: The figures of every output tensor.
        rejection: The first disagreement, when it did not pass.
        calls: The calls that were compared: samples and corners.
        notes: What could not be compared, and why.
        failures: The first disagreement of every call that does not agree.
        metric: Value of the user's own metric, where the accuracy budget has one and it was computed.
        deviations: What is otherwise than the original with exceptional values: NaN, infinities, floats far from the
            recorded ones, ids beyond their table.
    """

    passed: bool
    outputs: tuple[OutputAgreement, ...] = ()
    rejection: Rejection | None = None
    calls: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    failures: tuple[Rejection, ...] = ()
    metric: float | None = None
    deviations: tuple[Rejection, ...] = ()

    @property
    def cosine(self) -> float | None:
        """Smallest cosine over the outputs; ``None`` when none was computed."""
        return min((output.cosine for output in self.outputs if output.cosine is not None), default=None)

    @property
    def relative_error(self) -> float | None:
        """Worst relative L2 over the outputs; ``None`` when no value was compared."""
        return max((output.relative_l2 for output in self.outputs), default=None)


@dataclass(frozen=True)
class BatchMeasurement:
    """Timing of one callable at one batch size.

    Args:
        batch_size: Samples in a call.
        median_ms: Median latency of a call.
        p90_ms: 90th percentile.
        p99_ms: 99th percentile.
        low_ms: Lower end of the interval of the median.
        high_ms: Upper end of the interval of the median.
        num_calls: Calls that were timed.
        p90_high_ms: Upper end of the interval of the 90th percentile; ``None`` where it is not known.
        p99_high_ms: The same of the 99th.
    """

    batch_size: int
    median_ms: float
    p90_ms: float
    p99_ms: float
    low_ms: float
    high_ms: float
    num_calls: int
    p90_high_ms: float | None = None
    p99_high_ms: float | None = None

    @property
    def throughput(self) -> float:
        """Samples per second at the median latency."""
        return self.batch_size * 1000.0 / self.median_ms


@dataclass(frozen=True)
class CandidateOutcome:
    """Everything seen of one candidate on one graph.

    Args:
        backend: Registry name of the backend.
        key: The backend's key: name, configuration and versions.
        description: Short text for people.
        status: How it ended.
        stage: How far it came.
        reason: Why it ended there, when it is not ``"ok"``.
        error_type: Name of the exception, when one was raised.
        is_baseline: Whether it is the original module, as it is.
        is_exact: Whether it keeps the precision of the module.
        recovery: How it comes back in another process: from its artifact, by compiling again, or from the module alone.
        build_seconds: Time to build and activate.
        check_seconds: Time to compare with the original.
        measure_seconds: Time to measure.
        agreement: Result of the comparison, when it came that far.
        measurements: Timing at each batch size, when it came that far.
        state: What :meth:`Backend.to_dict` gave, as plain data, when it was built.
        notes: Anything else worth knowing, such as "nothing was compiled".
    """

    backend: str
    key: str
    description: str
    status: Status
    stage: Stage
    reason: str | None = None
    error_type: str | None = None
    is_baseline: bool = False
    is_exact: bool = True
    recovery: Literal["artifact", "compile", "module"] = "module"
    build_seconds: float = 0.0
    check_seconds: float = 0.0
    measure_seconds: float = 0.0
    agreement: Agreement | None = None
    measurements: tuple[BatchMeasurement, ...] = ()
    state: dict[str, Any] | None = None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class PairedComparison:
    """Two callables measured in turn, in the same run.

    Args:
        candidate: Key of the one that is judged.
        opponent: Key of the one that it is judged against.
        speedup: Estimate of opponent time over candidate time; above 1 the candidate is faster.
        low: Lower end of its interval; without a pair it is as wide as can be written.
        high: Upper end of its interval.
        confidence: Confidence of the interval, such as 0.995; 0 without a pair.
        verdict: What the interval says.
        pairs: Pairs of blocks measured.
        clean_pairs: Pairs that other processes did not disturb.
        seconds: Time spent.
        reason: The verdict in words; for ``"undecided"`` also what would decide it.
        failed: Key of the one that raised while they were compared, if one did.
    """

    candidate: str
    opponent: str
    speedup: float
    low: float
    high: float
    confidence: float
    verdict: Verdict
    pairs: int
    clean_pairs: int
    seconds: float
    reason: str
    failed: str | None = None

    @property
    def was_measured(self) -> bool:
        """Whether there is a pair of blocks; without one ratio and interval say nothing."""
        return self.pairs > 0

    @property
    def is_informative(self) -> bool:
        """Whether ratio and interval say something: there are pairs, and enough for a verdict or a usable interval."""
        return self.was_measured and (self.verdict != "undecided" or not is_too_wide(self.low, self.high))


@dataclass(frozen=True)
class GraphReport:
    """The record of tuning one graph.

    Args:
        module: Name of the module.
        graph: Name of the graph.
        description: Inputs and outputs with their axes.
        strategy: The strategy and its settings, as plain data.
        outcomes: The baseline first, then the candidates in the order of the list.
        comparisons: The paired comparisons.
        winner: Key of the chosen one; ``None`` when the graph was not tuned.
        reason: Why it was chosen, or why nothing was.
        seconds: Time spent on the graph.
        warnings: What the user should know.
        reference_seconds: Time of running the original for what the candidates are compared with.
        axes: Which axes vary, and which recorded calls showed it.
    """

    module: str
    graph: str
    description: str
    strategy: dict[str, Any]
    outcomes: tuple[CandidateOutcome, ...]
    comparisons: tuple[PairedComparison, ...]
    winner: str | None
    reason: str
    seconds: float
    warnings: tuple[str, ...] = field(default=())
    reference_seconds: float = 0.0
    axes: tuple[str, ...] = ()
