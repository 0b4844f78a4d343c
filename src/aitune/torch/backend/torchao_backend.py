"""Runs a module whose linear layers TorchAO has quantised."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

import torch

from aitune.exceptions import AITuneUserInputError, ArtifactError, BuildError
from aitune.torch.backend.backend import Backend
from aitune.torch.backend.backend_config import BackendConfig, require_switches
from aitune.torch.backend.fingerprint import backend_key
from aitune.torch.backend.stored_state import restore_on_module, stored_form
from aitune.torch.backend.untouched import untouched
from aitune.torch.module.graph_spec import GraphSpec
from aitune.torch.module.sample import Sample

# Names that need no import of torchao, by what they stand for there.
_NAMED: dict[str, tuple[str, dict[str, Any]]] = {
    "int8_dynamic": ("Int8DynamicActivationInt8WeightConfig", {}),
    "int8_weight_only": ("Int8WeightOnlyConfig", {}),
    "int4_weight_only": ("IntxWeightOnlyConfig", {"weight_dtype": torch.int4}),  # type: ignore[attr-defined]
    "float8_dynamic": ("Float8DynamicActivationFloat8WeightConfig", {}),
}
_CUDA_ONLY = ("float8_dynamic",)


@dataclass(frozen=True)
class TorchAOBackendConfig(BackendConfig):
    """Settings of TorchAO; all of them give precision away.

    Args:
        quantization_config: ``"int8_dynamic"``, ``"int8_weight_only"``, ``"int4_weight_only"``, ``"float8_dynamic"``
            (on a GPU), or a configuration object of torchao, which is kept as plain data.
        compile: Whether the quantised module goes through torch.compile.
        mode: Mode of torch.compile.
        fullgraph: Whether a module that cannot be compiled as one graph is refused.
        dynamic: Whether sizes vary in the compiled code; ``None`` lets torch.compile find out.
        filter_fn: ``filter_fn(module, name)`` says which submodules are quantised; all linear layers by default. A
            backend with one cannot be stored.

    Raises:
        AITuneUserInputError: ``quantization_config`` is none of these, or another setting has no such value.
    """

    quantization_config: Any = "int8_dynamic"
    compile: bool = False
    mode: str | None = None
    fullgraph: bool = False
    dynamic: bool | None = None
    filter_fn: Callable[[torch.nn.Module, str], bool] | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "quantization_config", _as_plain(self.quantization_config))
        if self.filter_fn is not None and not callable(self.filter_fn):
            raise AITuneUserInputError(
                f"TorchAOBackendConfig: filter_fn must be a function of a module and its name, got {self.filter_fn!r}"
            )
        super().__post_init__()
        require_switches(self, "compile", "fullgraph", "dynamic")

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as plain data; a filter is written by its name, which nothing is made from again."""
        plain = super().to_dict()
        if self.filter_fn is not None:
            # An object that can be called, such as a partial, has no name of its own.
            named = self.filter_fn if hasattr(self.filter_fn, "__qualname__") else type(self.filter_fn)
            plain["filter_fn"] = f"{named.__module__}.{named.__qualname__}"
        return plain

    def describe(self) -> str:
        """Name the quantisation, and the settings that differ from their defaults."""
        config = self.quantization_config
        name = config if isinstance(config, str) else str(config.get("_type"))
        others = ", ".join(
            f"{field}={value}"
            for field, value in self.to_dict().items()
            if field != "quantization_config" and value not in (None, False)
        )
        return f"{name}, {others}" if others else name


class TorchAOBackend(Backend):
    """A copy of the module with quantised linear layers, run eagerly or through torch.compile.

    The original module is not changed. Calls may come from several threads.

    Args:
        config: Settings; ``None`` takes the defaults.
    """

    is_exact = False
    needs_original_module: ClassVar[bool] = True
    recovery: ClassVar[Literal["artifact", "compile", "module"]] = "compile"
    required_packages: ClassVar[tuple[str, ...]] = ("torchao",)
    extra: ClassVar[str | None] = "torchao"

    def __init__(self, config: TorchAOBackendConfig | None = None) -> None:
        super().__init__()
        self.config = config if config is not None else TorchAOBackendConfig()
        self._module: torch.nn.Module | None = None
        self._data: Sequence[Sample] = ()
        self._callable: Callable[..., Any] | None = None

    def key(self) -> str:
        """Return name, configuration and versions as one string."""
        return backend_key(self.name, self.config, self.required_packages)

    def describe(self) -> str:
        """Return the name and the settings."""
        return f"{self.name}({self.config.describe()})"

    def can_run(self, module: torch.nn.Module, graph_spec: GraphSpec, device: torch.device) -> str | None:
        """Say why the graph cannot be run here; ``None`` when it can be tried."""
        if device.type != "cuda" and self.config.quantization_config in _CUDA_ONLY:
            return f"{self.config.quantization_config} runs on cuda, not on {device.type}"
        if self.config.filter_fn is None and not any(isinstance(part, torch.nn.Linear) for part in module.modules()):
            return "the module has no linear layer to quantise"
        return super().can_run(module, graph_spec, device)

    def _build(
        self, module: torch.nn.Module, graph_spec: GraphSpec, data: Sequence[Sample], cache_dir: Path
    ) -> Backend:
        self._module = module
        self._data = tuple(data)
        self._callable = self._prepare()
        return self

    def _activate(self) -> None:
        if self._callable is None:
            self._callable = self._prepare()

    def _deactivate(self) -> None:
        """The quantised copy stays: it is the build."""

    def _deploy(self) -> None:
        self._data = ()

    def _prepare(self) -> Callable[..., Any]:
        quantized, count = self._quantize()
        self.notes = (f"{count} layers were quantised",)
        if not self.config.compile:
            return quantized
        run: Callable[..., Any] = torch.compile(
            quantized, mode=self.config.mode, fullgraph=self.config.fullgraph, dynamic=self.config.dynamic
        )
        with untouched(quantized):
            for args, kwargs in self._data:
                run(*args, **kwargs)
        return run

    def _quantize(self) -> tuple[torch.nn.Module, int]:
        module = self._module
        if module is None:
            raise BuildError(f"{self.describe()} has no module to quantise", backend=self.describe())
        try:
            copied = copy.deepcopy(module).eval().requires_grad_(False)
        except Exception as error:
            raise BuildError(
                f"{self.describe()} works on a copy, and the module cannot be copied: {type(error).__name__}: {error}",
                backend=self.describe(),
            ) from error
        before = _weights(copied)
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            from torchao.quantization import quantize_

            quantize_(copied, _quantizer(self.config.quantization_config), filter_fn=self.config.filter_fn)
        after = _weights(copied)
        count = sum(kind is not before[name] for name, kind in after.items() if name in before)
        if count == 0:
            raise BuildError(f"{self.describe()} quantised no layer of the module", backend=self.describe())
        return copied, count

    def _infer(self, *args: Any, **kwargs: Any) -> Any:
        run: Any = self._callable
        with torch.inference_mode(False), torch.no_grad():
            return run(*args, **kwargs)

    def to_dict(self) -> dict[str, Any]:
        """Return configuration and graph; the module is quantised again.

        Raises:
            ArtifactError: The configuration has a filter, which is a function.
        """
        stored = stored_form(self, self.config, self.required_packages)
        if self.config.filter_fn is not None:
            raise ArtifactError(f"{self.describe()} has a filter_fn, and a function cannot be stored")
        return stored

    @classmethod
    def from_dict(cls, module: torch.nn.Module | None, state: dict[str, Any]) -> TorchAOBackend:
        """Make an inactive backend that quantises ``module`` when it is activated.

        Args:
            module: The original module.
            state: What :meth:`to_dict` gave.

        Raises:
            ArtifactError: The state is not one of this backend, or no module is given.
        """
        return restore_on_module(cls, TorchAOBackendConfig, module, state, "quantises")


def _weights(module: torch.nn.Module) -> dict[str, type]:
    return {name: type(parameter.data) for name, parameter in module.named_parameters()}


def _as_plain(config: Any) -> Any:
    """Return a name or plain data as it is, and a configuration object of torchao as plain data."""
    if isinstance(config, str) and config in _NAMED:
        return config
    if isinstance(config, Mapping) and "_type" in config:
        return dict(config)
    if type(config).__module__.split(".")[0] == "torchao":
        from torchao.core.config import config_to_dict

        return config_to_dict(config)
    known = ", ".join(repr(name) for name in _NAMED)
    raise AITuneUserInputError(
        f"TorchAOBackendConfig: quantization_config must be one of {known}, or a configuration of torchao, "
        f"got {config!r}"
    )


def _quantizer(plain: Any) -> Any:
    """Make a configuration object of torchao from its name or its plain data."""
    if isinstance(plain, str):
        import torchao.quantization

        name, settings = _NAMED[plain]
        made = getattr(torchao.quantization, name)(**settings)
        # Settings of Inductor for the whole process would reach other candidates.
        if hasattr(made, "set_inductor_config"):
            made.set_inductor_config = False
        return made
    from torchao.core.config import config_from_dict

    return config_from_dict(plain)
