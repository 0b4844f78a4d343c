"""Configurations of backends: frozen, and writable as plain data."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, TypeVar

import torch

from aitune.exceptions import AITuneUserInputError, ArtifactError
from aitune.utils.validation import boolean, one_of, positive_integer

ConfigT = TypeVar("ConfigT", bound="BackendConfig")


@dataclass(frozen=True)
class BackendConfig:
    """Base of the configurations; a subclass is a frozen dataclass whose fields are plain data or dtypes.

    Raises:
        AITuneUserInputError: A field cannot be written as plain data.
    """

    def __post_init__(self) -> None:
        for name, value in self.to_dict().items():
            try:
                json.dumps(value)
            except (TypeError, ValueError) as error:
                raise AITuneUserInputError(
                    f"{type(self).__name__}: {name} must be plain data (numbers, strings, lists, dicts), got {value!r}"
                ) from error

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as plain data; a dtype is written by its name."""
        return {field.name: _plain(getattr(self, field.name)) for field in fields(self)}

    @classmethod
    def from_dict(cls: type[ConfigT], data: Mapping[str, Any]) -> ConfigT:
        """Read what :meth:`to_dict` wrote.

        Args:
            data: Plain data.

        Raises:
            ArtifactError: A field is unknown or its value is not allowed.
        """
        try:
            return cls(**{name: _from_plain(value) for name, value in data.items()})
        except (TypeError, ValueError, AITuneUserInputError) as error:
            raise ArtifactError(f"the stored {cls.__name__} cannot be read: {error}") from error

    def describe_backend(self, name: str) -> str:
        """Return the name of a backend with the settings that differ from their defaults, for people.

        Args:
            name: Name of the backend.
        """
        settings = self.describe()
        return f"{name}({settings})" if settings else name

    def describe(self) -> str:
        """Name the fields that differ from their defaults, for people; empty when none does."""
        default = type(self)().to_dict()
        return ", ".join(f"{name}={value}" for name, value in self.to_dict().items() if value != default[name])


def require_choice(config: BackendConfig, name: str, allowed: tuple[object, ...]) -> None:
    """Check that a field has one of the values that it may have.

    Args:
        config: The configuration.
        name: Name of the field.
        allowed: The values that it may have.

    Raises:
        AITuneUserInputError: It has another one.
    """
    one_of(getattr(config, name), f"{type(config).__name__}: {name}", allowed)


def require_positive(config: BackendConfig, name: str) -> None:
    """Make a field a positive ``int``, where it is not ``None``; integers of NumPy are taken.

    Args:
        config: The configuration.
        name: Name of the field.

    Raises:
        AITuneUserInputError: It is something else.
    """
    value = getattr(config, name)
    if value is not None:
        object.__setattr__(config, name, positive_integer(value, f"{type(config).__name__}: {name}"))


def require_switches(config: BackendConfig, *names: str) -> None:
    """Check that fields are ``True`` or ``False``, or ``None`` where that is their default.

    Args:
        config: The configuration.
        names: Names of the fields.

    Raises:
        AITuneUserInputError: One is something else.
    """
    for name in names:
        value = getattr(config, name)
        # A class keeps the defaults of its fields as attributes.
        if value is not None or getattr(type(config), name) is not None:
            boolean(value, f"{type(config).__name__}: {name}")


def require_named_settings(config: BackendConfig, name: str) -> None:
    """Check that a field is a dict of settings by name.

    Args:
        config: The configuration.
        name: Name of the field.

    Raises:
        AITuneUserInputError: It is something else.
    """
    value = getattr(config, name)
    if not isinstance(value, dict) or not all(isinstance(key, str) for key in value):
        raise AITuneUserInputError(
            f"{type(config).__name__}: {name} must be a dict of settings by name, such as {{'max_autotune': True}}, "
            f"got {value!r}"
        )


_DTYPE_PREFIX = "torch."


def _plain(value: Any) -> Any:
    return str(value) if isinstance(value, torch.dtype) else value


def _from_plain(value: Any) -> Any:
    if isinstance(value, str) and value.startswith(_DTYPE_PREFIX):
        dtype = getattr(torch, value.removeprefix(_DTYPE_PREFIX), None)
        if isinstance(dtype, torch.dtype):
            return dtype
    return value
