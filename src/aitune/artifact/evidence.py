"""What a file says about how its builds were chosen. It is for people: nothing that is loaded depends on it."""

from __future__ import annotations

from aitune.artifact.records import Count, Record, Text


class MeasurementRecord(Record, frozen=True, kw_only=True):
    """Latency of one candidate at one batch size: median and its interval, in milliseconds."""

    batch_size: Count
    median_ms: float
    low_ms: float
    high_ms: float


class CandidateRecord(Record, frozen=True, kw_only=True):
    """What was seen of one candidate.

    ``relative_error`` is the worst relative L2 over all compared calls, ``allowed`` the largest that would have passed.
    """

    key: Text
    description: Text
    status: Text
    reason: Text | None = None
    is_baseline: bool = False
    passed: bool | None = None
    compared_calls: Count = 0
    relative_error: float | None = None
    allowed: float | None = None
    measurements: tuple[MeasurementRecord, ...] = ()


class ComparisonRecord(Record, frozen=True, kw_only=True):
    """Two candidates measured in turn: time of the opponent over time of the candidate, with its interval."""

    candidate: Text
    opponent: Text
    speedup: float
    low: float
    high: float
    confidence: float
    verdict: Text


class EvidenceRecord(Record, frozen=True, kw_only=True):
    """How the builds of one graph were chosen."""

    strategy: Text
    winner: Text | None
    reason: Text
    candidates: tuple[CandidateRecord, ...] = ()
    comparisons: tuple[ComparisonRecord, ...] = ()
