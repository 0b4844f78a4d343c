"""Settings of the library: one object, read when asked, overridden for a scope."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal

import platformdirs

from aitune.exceptions import AITuneEnvironmentError, AITuneUserInputError


def aitune_cache_dir() -> Path:
    """Return the folder for builds and recorded samples.

    ``AITUNE_CACHE_DIR`` names it; without that it is ``aitune`` in the user's cache folder.
    """
    named = os.environ.get("AITUNE_CACHE_DIR")
    return Path(named).expanduser() if named else Path(platformdirs.user_cache_dir("aitune"))


@dataclass
class Config:
    """Settings that hold for every run; ``with config.override(...)`` changes them for a scope.

    Args:
        cache_dir: Folder for builds and samples; ``None`` asks :func:`aitune_cache_dir` at each use.
        max_num_samples_stored: Most samples kept on disk for one graph.
        max_graphs: Most graphs recorded for one module; further kinds of calls run on the original.
        strict_mode: Whether non-tensor arguments are part of a graph's identity.
        on_unknown_input: What a tuned module does with a call that no graph covers: run the original, or raise.
        on_exceptional_values: What happens to a candidate that agrees on ordinary calls and answers otherwise than the
            original to NaN, infinities or ids beyond their table: the report says so, or it is rejected.
        weight_check_interval: Seconds between two looks of a tuned module at some values of its weights, which find
            writes that nothing else shows (through ``.data``); ``None`` never looks.
        minimum_gain: Share by which a candidate must beat the original to replace it (0.01 is 1%).
        num_threads: Threads that a call may use on a CPU, for every backend alike; ``None`` keeps torch's number.
        seed: Seed of the random orders and of the inputs that are made up for checks.
        device_after_tuning: Without effect so far: the original module stays where it is, so that calls outside the
            tuned range can run on it.
        enable_transformers_integration: Whether classes of transformers are recognised when it is loaded.
        enable_diffusers_integration: Without effect so far: no class of diffusers needs to be recognised.
    """

    cache_dir: Path | None = None
    max_num_samples_stored: int = 8
    max_graphs: int = 16
    strict_mode: bool = True
    on_unknown_input: Literal["eager", "error"] = "eager"
    on_exceptional_values: Literal["report", "reject"] = "report"
    weight_check_interval: float | None = 1.0
    minimum_gain: float = 0.01
    num_threads: int | None = None
    seed: int = 0
    device_after_tuning: str | None = None
    enable_transformers_integration: bool = True
    enable_diffusers_integration: bool = True

    def resolve_cache_dir(self) -> Path:
        """Return the folder for builds and samples that holds now."""
        if self.cache_dir is None:
            return aitune_cache_dir()
        if not isinstance(self.cache_dir, str | os.PathLike):
            raise AITuneUserInputError(f"config.cache_dir must be a path or None, got {self.cache_dir!r}")
        return Path(self.cache_dir)

    def new_folder(self, parent: str, prefix: str) -> Path:
        """Make a folder that is nobody else's in the cache folder.

        Args:
            parent: Folder of the cache that it is made in.
            prefix: What its name begins with.

        Raises:
            AITuneEnvironmentError: The cache folder cannot be made or written to; the message names the setting.
        """
        root = self.resolve_cache_dir()
        try:
            (root / parent).mkdir(parents=True, exist_ok=True)
            return Path(tempfile.mkdtemp(prefix=prefix, dir=root / parent))
        except (OSError, ValueError) as error:
            said = "config.cache_dir" if self.cache_dir is not None else "AITUNE_CACHE_DIR, or the user's cache folder,"
            raise AITuneEnvironmentError(
                f"the cache folder {str(root)!r} cannot be used: {error}; {said} names it: set AITUNE_CACHE_DIR or "
                f"config.cache_dir to a folder that can be made and written to, on a disk with room"
            ) from error

    @contextmanager
    def override(self, **settings: Any) -> Iterator[Config]:
        """Change settings inside a ``with`` block and put the old values back after it.

        Args:
            settings: New values by name.

        Raises:
            AITuneUserInputError: A name is no setting.
        """
        known = {field.name for field in fields(self)}
        unknown = sorted(set(settings) - known)
        if unknown:
            raise AITuneUserInputError(f"config has no setting {', '.join(unknown)}; settings are {sorted(known)}")
        before = {name: getattr(self, name) for name in settings}
        try:
            for name, value in settings.items():
                setattr(self, name, value)
            yield self
        finally:
            for name, value in before.items():
                setattr(self, name, value)


config = Config()
