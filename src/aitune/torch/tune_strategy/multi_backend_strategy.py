"""Keeps the candidates of a strategy, and chooses the default ones once the module is known."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal, TypeVar

import torch

from aitune.exceptions import AITuneUserInputError
from aitune.torch.backend.backend import Backend
from aitune.torch.tune_strategy.default_candidates import ModuleKind
from aitune.torch.tune_strategy.hook_results import hook_name
from aitune.torch.tune_strategy.mixin.find_max_batch_size_mixin import FindMaxBatchSizeMixin
from aitune.torch.tune_strategy.strategy_settings import backend_settings
from aitune.utils.validation import one_of

Strategy = TypeVar("Strategy", bound="MultiBackendStrategy")


class MultiBackendStrategy(FindMaxBatchSizeMixin):
    """Keep candidate lists in strategies and select them once the module is known.

    Defaults are made for the kind of the module (its device, distributed or not, what its layers are) and made again
    when the kind changes. An explicit list always wins, an empty one as well.

    Args:
        backends: Candidates in order of preference, never built; ``None`` takes the defaults.
        workflow: Which defaults: built ahead of time, or made while the program runs.
        kwargs: Arguments of :class:`FindMaxBatchSizeMixin`.

    Raises:
        AITuneUserInputError: ``backends`` holds something that is no backend, or the workflow is unknown.
    """

    _resolved_backends: list[Backend] | None = None

    def __init__(
        self,
        backends: list[Backend] | None = None,
        workflow: Literal["aot", "jit"] = "aot",
        **kwargs: Any,
    ) -> None:
        self._workflow: Literal["aot", "jit"] = one_of(workflow, "workflow", ("aot", "jit"))
        self._explicit_backends = None if backends is None else check_backends(backends)
        self._module_kind: ModuleKind | None = None
        self._resolved_backends = None
        super().__init__(**kwargs)

    @classmethod
    def for_aot(cls: type[Strategy], **kwargs: Any) -> Strategy:
        """Create a strategy with the candidates for tuning ahead of time and its default batch-size policy.

        Args:
            kwargs: Arguments of the constructor.
        """
        return _for_workflow(cls, "aot", kwargs)

    @classmethod
    def for_jit(cls: type[Strategy], **kwargs: Any) -> Strategy:
        """Create a strategy with the candidates for tuning while the program runs, on the batches that it sees.

        Args:
            kwargs: Arguments of the constructor.
        """
        strategy = _for_workflow(cls, "jit", kwargs)
        strategy.enable_find_max_batch_size(False)
        return strategy

    @property
    def _backends(self) -> list[Backend]:
        """Return explicit candidates or the defaults for the current module."""
        if self._explicit_backends is not None:
            return self._explicit_backends
        if self._resolved_backends is None:
            resolved = self._resolve_default_backends()
            self._resolved_backends = self._checked(resolved, "_resolve_default_backends")
        return self._resolved_backends

    def _candidates(self) -> Sequence[Backend]:
        return self._checked(self._backends, "_backends")

    def _checked(self, backends: Any, hook: str) -> list[Backend]:
        return check_backends(backends, f"what {hook_name(self, hook)} returned")

    def _configure_for_module(self, module: torch.nn.Module) -> None:
        """Forget the defaults when the kind of module changed; explicit candidates stay."""
        kind = replace(ModuleKind.of(module), may_lose_precision=self._budget is not None)
        if kind != self._module_kind:
            self._module_kind = kind
            self._resolved_backends = None

    @property
    def _kind(self) -> ModuleKind:
        return self._module_kind or ModuleKind()

    def _resolve_default_backends(self) -> list[Backend]:
        """Build only the candidates for the selected workflow and module type."""
        distributed = self._kind.distributed
        if self._workflow == "jit":
            return self._checked(self._default_jit_backends(distributed), "_default_jit_backends")
        return self._checked(self._default_aot_backends(distributed), "_default_aot_backends")

    @abstractmethod
    def _default_aot_backends(self, distributed: bool = False) -> list[Backend]:
        """Return AOT candidates that support the module's execution requirements."""

    @abstractmethod
    def _default_jit_backends(self, distributed: bool = False) -> list[Backend]:
        """Return JIT candidates that support the module's execution requirements."""

    def _position(self, backend: Backend) -> int:
        """Return the place of a candidate, or of what was built from it, in the list."""
        keys = [candidate.key() for candidate in self._backends]
        return keys.index(backend.key()) if backend.key() in keys else len(keys)

    def _describe_parts(self) -> list[str]:
        return [*super()._describe_parts(), "candidates: " + ", ".join(b.describe() for b in self._backends)]

    def to_json_dict(self) -> dict[str, Any]:
        """Return every setting that is needed to repeat the run, as plain data."""
        explicit = self._explicit_backends
        return {
            **super().to_json_dict(),
            "workflow": self._workflow,
            "backends": [backend_settings(backend) for backend in self._backends],
            "explicit_backends": explicit is not None,
        }


def _for_workflow(cls: type[Strategy], workflow: str, kwargs: dict[str, Any]) -> Strategy:
    if "workflow" in kwargs:
        raise AITuneUserInputError(
            f"for_{workflow} sets the workflow, got workflow={kwargs['workflow']!r} as well; leave it out, or call "
            f"{cls.__name__}(workflow=...)"
        )
    return cls(**{**kwargs, "workflow": workflow})


def check_backends(backends: Any, what: str = "backends") -> list[Backend]:
    """Return the list when it holds backends that were never built.

    Args:
        backends: What was given.
        what: What it is called in messages.

    Raises:
        AITuneUserInputError: It holds something else.
    """
    if isinstance(backends, Backend) or not isinstance(backends, Sequence):
        raise AITuneUserInputError(f"{what} must be a list of backends, got {backends!r}")
    for backend in backends:
        if isinstance(backend, type) and issubclass(backend, Backend):
            raise AITuneUserInputError(
                f"{what} holds the class {backend.__name__}; give an instance: {backend.__name__}()"
            )
        if not isinstance(backend, Backend):
            raise AITuneUserInputError(f"{what} must hold backends, got {backend!r}")
    keys = [backend.key() for backend in backends]
    twice = sorted({key for key in keys if keys.count(key) > 1})
    if twice:
        raise AITuneUserInputError(f"{what} holds {twice[0]} twice; each candidate must differ in its configuration")
    return list(backends)
