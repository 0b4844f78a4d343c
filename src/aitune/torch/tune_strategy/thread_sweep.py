"""Candidates with different numbers of threads."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import fields, is_dataclass, replace
from typing import Any

from aitune.torch.backend.backend import Backend
from aitune.torch.backend.threads import thread_budget, thread_counts


def with_thread_counts(backends: Iterable[Backend]) -> list[Backend]:
    """Return candidates, and after each that has threads of its own the same with half of the budget and with one.

    What runs on torch's threads has one number for the whole process, which no candidate can change; one whose number
    the user set keeps it.

    Args:
        backends: Candidates in order of preference.
    """
    return [variant for backend in backends for variant in _variants(backend)]


def _variants(backend: Backend) -> Iterator[Backend]:
    yield backend
    config: Any = getattr(backend, "config", None)
    has_threads = is_dataclass(config) and "num_threads" in {field.name for field in fields(config)}
    if has_threads and config.num_threads is None:
        make: Any = type(backend)
        for count in thread_counts(thread_budget(None))[1:]:
            yield make(replace(config, num_threads=count))
