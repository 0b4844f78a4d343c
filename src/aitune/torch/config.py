"""Settings of the library: one object, read when asked, overridden for a scope."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import platformdirs

from aitune.exceptions import AITuneEnvironmentError, AITuneUserInputError
from aitune.utils.process_folder import ProcessFolder
from aitune.utils.validation import boolean, integer_at_least, number_at_least, one_of, positive_integer

_LARGEST_SEED = 2**32 - 1
"""Seeds of single calls are made from it, and must fit into what torch's generators take."""


def aitune_cache_dir() -> Path:
    """Return the folder for builds and recorded samples.

    ``AITUNE_CACHE_DIR`` names it; without that it is ``aitune`` in the user's cache folder.
    """
    named = os.environ.get("AITUNE_CACHE_DIR")
    return _folder(named, "AITUNE_CACHE_DIR") if named else Path(platformdirs.user_cache_dir("aitune"))


def _folder(value: Any, what: str) -> Path:
    try:
        return Path(os.path.expanduser(os.fspath(value)))
    except TypeError as error:
        raise AITuneUserInputError(f"{what} must be a path or None, got {value!r}") from error


Check = Callable[[Any, str], Any]
"""Returns the value that is kept; takes what was given and the name for messages."""


def _or_none(check: Check) -> Check:
    return lambda value, what: None if value is None else check(value, what)


def _choice(*allowed: str) -> Check:
    return lambda value, what: one_of(value, what, allowed)


def _seed(value: Any, what: str) -> int:
    seed = integer_at_least(value, what, 0)
    if seed > _LARGEST_SEED:
        raise AITuneUserInputError(f"{what} must be at most {_LARGEST_SEED}, got {value!r}")
    return seed


def _text(value: Any, what: str) -> str:
    if not isinstance(value, str):
        raise AITuneUserInputError(f"{what} must be a str or None, got {value!r}")
    return value


def _not_negative(value: Any, what: str) -> float:
    return number_at_least(value, what, 0.0)


_CHECKS: Mapping[str, Check] = {
    "cache_dir": _or_none(_folder),
    "max_num_samples_stored": positive_integer,
    "max_graphs": positive_integer,
    "strict_mode": boolean,
    "on_unknown_input": _choice("eager", "error"),
    "on_exceptional_values": _choice("report", "reject"),
    "weight_check_interval": _or_none(_not_negative),
    "minimum_gain": _not_negative,
    "num_threads": _or_none(positive_integer),
    "seed": _seed,
    "device_after_tuning": _or_none(_text),
    "enable_transformers_integration": boolean,
    "enable_diffusers_integration": boolean,
}
"""Every setting, with what it may be set to."""


def _unknown(names: list[str]) -> AITuneUserInputError:
    return AITuneUserInputError(f"config has no setting {', '.join(names)}; settings are {sorted(_CHECKS)}")


@dataclass
class Config:
    """Settings that hold for every run; ``with config.override(...)`` changes them for a scope.

    A value is checked when it is set, where the line that is wrong still is at hand.

    Args:
        cache_dir: Folder for builds and samples, ``~`` being the user's home; ``None`` asks :func:`aitune_cache_dir` at
            each use.
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

    Raises:
        AITuneUserInputError: A setting has no such value.
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

    def __setattr__(self, name: str, value: Any) -> None:
        """Set a setting to a value that it may have; a name that is none is an error, too."""
        if name not in _CHECKS:
            raise _unknown([name])
        object.__setattr__(self, name, _CHECKS[name](value, f"config.{name}"))

    def resolve_cache_dir(self) -> Path:
        """Return the folder for builds and samples that holds now."""
        return aitune_cache_dir() if self.cache_dir is None else self.cache_dir

    def new_folder(self, parent: str, prefix: str) -> ProcessFolder:
        """Make a folder of this process alone in the cache folder.

        Args:
            parent: Folder of the cache that it is made in.
            prefix: What its name begins with.

        Raises:
            AITuneEnvironmentError: The cache folder cannot be made or written to; the message names the setting.
        """
        root = self.resolve_cache_dir()
        try:
            return ProcessFolder(root / parent, prefix)
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
            AITuneUserInputError: A name is no setting, or has no such value; nothing is changed then.
        """
        unknown = sorted(set(settings) - set(_CHECKS))
        if unknown:
            raise _unknown(unknown)
        before = {name: getattr(self, name) for name in settings}
        try:
            for name, value in settings.items():
                setattr(self, name, value)
            yield self
        finally:
            for name, value in before.items():
                setattr(self, name, value)


config = Config()
