"""What a file tells of how its builds were chosen, from the report of the tuning run."""

from __future__ import annotations

import math
from collections.abc import Sequence

from aitune.artifact.evidence import CandidateRecord, ComparisonRecord, EvidenceRecord, MeasurementRecord
from aitune.torch.task.outcome import CandidateOutcome, GraphReport


def evidence_of(report: GraphReport) -> EvidenceRecord:
    """Write the report of one graph as a record.

    Args:
        report: The report.
    """
    return EvidenceRecord(
        strategy=str(report.strategy.get("strategy", "")),
        winner=report.winner,
        reason=report.reason,
        candidates=tuple(_candidate(outcome) for outcome in report.outcomes),
        comparisons=tuple(
            ComparisonRecord(
                candidate=comparison.candidate,
                opponent=comparison.opponent,
                speedup=_finite(comparison.speedup),
                low=_finite(comparison.low),
                high=_finite(comparison.high),
                confidence=_finite(comparison.confidence),
                verdict=comparison.verdict,
            )
            for comparison in report.comparisons
        ),
    )


def _candidate(outcome: CandidateOutcome) -> CandidateRecord:
    agreement = outcome.agreement
    error = None if agreement is None else agreement.relative_error
    return CandidateRecord(
        key=outcome.key,
        description=outcome.description,
        status=outcome.status,
        reason=None if outcome.reason is None else outcome.reason[:2000],
        is_baseline=outcome.is_baseline,
        passed=None if agreement is None else agreement.passed,
        compared_calls=0 if agreement is None else len(agreement.calls),
        relative_error=None if error is None or not math.isfinite(error) else error,
        allowed=None if agreement is None else _largest([output.allowed for output in agreement.outputs]),
        measurements=tuple(
            MeasurementRecord(
                batch_size=measured.batch_size,
                median_ms=_finite(measured.median_ms),
                low_ms=_finite(measured.low_ms),
                high_ms=_finite(measured.high_ms),
            )
            for measured in outcome.measurements
        ),
    )


def _largest(values: Sequence[float | None]) -> float | None:
    return max((value for value in values if value is not None and math.isfinite(value)), default=None)


def _finite(value: float) -> float:
    # JSON has no other numbers; what is shown of one that is not finite does not matter.
    return float(value) if math.isfinite(value) else -1.0
