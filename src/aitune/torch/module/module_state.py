"""The states of a wrapped module."""

from __future__ import annotations

import enum


class ModuleState(enum.Enum):
    """What a call of a wrapped module does."""

    INIT = "init"
    RECORDING = "recording"
    PASSTHROUGH = "passthrough"
    TUNED = "tuned"
