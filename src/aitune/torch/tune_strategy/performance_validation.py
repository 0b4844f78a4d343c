"""Whether the original module is measured, and whether it may win."""

from __future__ import annotations

import enum

from aitune.exceptions import AITuneUserInputError


class PerformanceValidationMode(enum.Enum):
    """What the measurement of the original module is for.

    ENABLED: it is the baseline, and stays unless a candidate is faster. DIAGNOSTIC: it is measured and reported, and
    does not choose. DISABLED: it is not measured.
    """

    ENABLED = "enabled"
    DIAGNOSTIC = "diagnostic"
    DISABLED = "disabled"

    @classmethod
    def of(cls, value: bool | str | PerformanceValidationMode) -> PerformanceValidationMode:
        """Read a mode from a flag, a name or a mode.

        Raises:
            AITuneUserInputError: It is none of these.
        """
        if isinstance(value, cls):
            return value
        if isinstance(value, bool):
            return cls.ENABLED if value else cls.DISABLED
        if isinstance(value, str) and value in {mode.value for mode in cls}:
            return cls(value)
        modes = ", ".join(repr(mode.value) for mode in cls)
        raise AITuneUserInputError(f"performance validation must be True, False or one of {modes}, got {value!r}")
