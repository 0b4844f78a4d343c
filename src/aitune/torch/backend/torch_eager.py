"""Runs the module itself, as it is or with another memory layout or autocast."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

import torch

from aitune.exceptions import BackendStateError
from aitune.torch.backend.autocast import AutocastConfig, cast_outputs
from aitune.torch.backend.backend import Backend
from aitune.torch.backend.backend_config import require_switches
from aitune.torch.backend.fingerprint import backend_key
from aitune.torch.backend.stored_state import restore_on_module, stored_form
from aitune.torch.module.graph_spec import GraphSpec
from aitune.torch.module.sample import Sample


@dataclass(frozen=True)
class TorchEagerBackendConfig(AutocastConfig):
    """Settings of running the module itself.

    Args:
        autocast_enabled: Whether operators run in ``autocast_dtype`` where torch holds that to be safe.
        autocast_dtype: The lower precision of autocast.
        channels_last: Whether weights of convolutions are laid out with the channels last.

    Raises:
        AITuneUserInputError: A setting has no such value.
    """

    channels_last: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        require_switches(self, "channels_last")


class TorchEagerBackend(Backend):
    """The module itself. With the default configuration a call is a call of the original module.

    Args:
        config: Settings; ``None`` takes the defaults.
    """

    needs_original_module: ClassVar[bool] = True
    survives_bad_indices: ClassVar[bool] = True
    recovery: ClassVar[Literal["artifact", "compile", "module"]] = "module"

    def __init__(self, config: TorchEagerBackendConfig | None = None) -> None:
        super().__init__()
        self.config = config if config is not None else TorchEagerBackendConfig()
        self.is_exact = not self.config.autocast_enabled
        self.runs_original = not (self.config.channels_last or self.config.autocast_enabled)
        # Weights that were laid out anew are copies.
        self.follows_weights = not self.config.channels_last
        self._module: torch.nn.Module | None = None
        self._callable: torch.nn.Module | None = None

    def key(self) -> str:
        """Return name, configuration and versions as one string."""
        return backend_key(self.name, self.config, ())

    def describe(self) -> str:
        """Return the name, and the settings that differ from their defaults."""
        return self.config.describe_backend(self.name)

    def _build(
        self, module: torch.nn.Module, graph_spec: GraphSpec, data: Sequence[Sample], cache_dir: Path
    ) -> Backend:
        self._module = module
        return self

    def _activate(self) -> None:
        if self._module is None:
            raise BackendStateError(f"{self.describe()} has no module", backend=self.describe())
        self._callable = channels_last_view(self._module) if self.config.channels_last else self._module

    def _deactivate(self) -> None:
        self._callable = None

    def _deploy(self) -> None:
        """Nothing is left from the build."""

    def _infer(self, *args: Any, **kwargs: Any) -> Any:
        run: Any = self._callable
        with torch.no_grad():
            if not self.config.autocast_enabled:
                return run(*args, **kwargs)
            with torch.autocast(self.device.type, dtype=self.config.autocast_dtype):
                output = run(*args, **kwargs)
            return cast_outputs(output, self.graph_spec)

    def to_dict(self) -> dict[str, Any]:
        """Return configuration and graph; the module is what it runs."""
        return stored_form(self, self.config, ())

    @classmethod
    def from_dict(cls, module: torch.nn.Module | None, state: dict[str, Any]) -> TorchEagerBackend:
        """Make a built, inactive backend that runs ``module``.

        Args:
            module: The original module.
            state: What :meth:`to_dict` gave.

        Raises:
            ArtifactError: The state is not one of this backend, or no module is given.
        """
        return restore_on_module(cls, TorchEagerBackendConfig, module, state, "runs")


def channels_last_view(module: torch.nn.Module) -> torch.nn.Module:
    """Return a module like ``module`` whose 4-D weights are laid out with the channels last.

    Submodules are new objects, everything else is shared with the module: it is not changed, and only those weights
    take memory. A submodule that is reached in another way than as a submodule (in a list, by a closure) stays the
    original one, which gives the same answers.

    Args:
        module: The module.
    """
    return _channels_last_view(module, {})


def _channels_last_view(module: torch.nn.Module, views: dict[int, torch.nn.Module]) -> torch.nn.Module:
    if id(module) in views:
        return views[id(module)]
    view = copy.copy(module)
    views[id(module)] = view
    view.__dict__["_parameters"] = {name: _channels_last(p) for name, p in module._parameters.items()}
    view.__dict__["_modules"] = {
        name: child if child is None else _channels_last_view(child, views) for name, child in module._modules.items()
    }
    return view


def _channels_last(parameter: torch.nn.Parameter | None) -> torch.nn.Parameter | None:
    if parameter is None or parameter.dim() != 4:
        return parameter
    laid_out = parameter.detach().clone(memory_format=torch.channels_last)
    return torch.nn.Parameter(laid_out, requires_grad=False)
