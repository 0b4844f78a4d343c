"""The settings of a strategy as plain data, complete enough to make it again by hand."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any

from aitune.exceptions import AITuneUserInputError
from aitune.torch.backend.backend import Backend
from aitune.torch.task.accuracy_budget import AccuracyBudget
from aitune.torch.task.profiling.config import ProfilingConfig


def plain_settings(value: Any) -> Any:
    """Return a setting as what JSON can hold.

    Dataclasses and other objects become their class and their settings, whatever can be called its name alone (it may
    hold anything: labels, a pipeline, itself), everything that is plain already stays.

    Args:
        value: Any setting.
    """
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Mapping):
        return {str(name): plain_settings(entry) for name, entry in value.items()}
    if isinstance(value, list | tuple):
        return [plain_settings(entry) for entry in value]
    if callable(value):
        named: Any = value if hasattr(value, "__qualname__") else type(value)
        return f"{named.__module__}.{named.__qualname__}"
    if is_dataclass(value):
        return {
            "class": type(value).__qualname__,
            **{f.name: plain_settings(getattr(value, f.name)) for f in fields(value)},
        }
    if type(value).__module__.split(".")[0] == "torch":
        return str(value)
    settings = {name.lstrip("_"): plain_settings(entry) for name, entry in getattr(value, "__dict__", {}).items()}
    return {"class": type(value).__qualname__, **settings}


def profiling_settings(config: ProfilingConfig | None) -> dict[str, Any] | None:
    """Return how candidates are profiled.

    Args:
        config: The settings; ``None`` for those of the run.
    """
    if config is None:
        return None
    return {field.name: plain_settings(getattr(config, field.name)) for field in fields(config)}


def accuracy_settings(budget: AccuracyBudget | None) -> dict[str, Any] | None:
    """Return what candidates that give precision away have to keep.

    Args:
        budget: The budget; ``None`` when there is none.
    """
    if budget is None:
        return None
    return {field.name: plain_settings(getattr(budget, field.name)) for field in fields(budget)}


def backend_settings(backend: Backend) -> dict[str, Any]:
    """Return which backend it is and how it is configured.

    Args:
        backend: A backend.
    """
    config = getattr(backend, "config", None)
    return {"name": backend.name, "key": backend.key(), "config": plain_settings(config)}


def check_accuracy_arguments(accuracy_budget: object, input_factory: object) -> None:
    """Check what a user gave to say how answers are compared.

    Args:
        accuracy_budget: What was given as the budget.
        input_factory: What was given as the factory of calls.

    Raises:
        AITuneUserInputError: One of them is of another kind.
    """
    if accuracy_budget is not None and not isinstance(accuracy_budget, AccuracyBudget):
        raise AITuneUserInputError(f"accuracy_budget must be an AccuracyBudget, got {accuracy_budget!r}")
    if input_factory is not None and not callable(input_factory):
        raise AITuneUserInputError(
            f"input_factory must be callable as input_factory(sizes), with the size of each symbol by name, "
            f"got {input_factory!r}"
        )
