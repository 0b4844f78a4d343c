"""The arguments of ``ait.tune``, checked before anything is done."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from aitune.events import Listener
from aitune.exceptions import AITuneUserInputError
from aitune.torch.tune_strategy.tune_strategy import TuneStrategy
from aitune.utils.error_text import error_line


def check_device(device: Any) -> torch.device | None:
    """Return a device that can be used here; ``None`` stays ``None``.

    Raises:
        AITuneUserInputError: It is no device, or this machine has none such.
    """
    if device is None:
        return None
    try:
        found = torch.device(device)
        torch.empty(0, device=found)
    except (RuntimeError, AssertionError, TypeError, ValueError, NotImplementedError) as error:
        raise AITuneUserInputError(
            f"device {device!r} cannot be used here: {error_line(error)}; give {_usable_devices()}, or leave it out "
            f"for the module's own"
        ) from error
    if found.type == "meta":
        raise AITuneUserInputError(
            f"device 'meta' holds no values, so nothing can run on it; give {_usable_devices()}, or leave it out"
        )
    return found


def _usable_devices() -> str:
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    return "'cpu'" if accelerator is None else f"'cpu', {accelerator.type!r}"


def check_strategy(strategy: Any) -> TuneStrategy | None:
    """Return a strategy; ``None`` stays ``None``.

    Raises:
        AITuneUserInputError: It is something else, such as the class.
    """
    if strategy is not None and not isinstance(strategy, TuneStrategy):
        what = f"{strategy.__name__}()" if isinstance(strategy, type) else "ait.MaxThroughputStrategy()"
        raise AITuneUserInputError(
            f"strategy must be a TuneStrategy, got {strategy!r}; give an instance such as {what}"
        )
    return strategy


def check_listeners(listeners: Any) -> tuple[Listener, ...]:
    """Return listeners as a tuple.

    Raises:
        AITuneUserInputError: It is no iterable of objects with a method ``on_event``.
    """
    if not isinstance(listeners, Iterable) or isinstance(listeners, str | bytes):
        raise AITuneUserInputError(f"listeners must be a list of objects with on_event(event), got {listeners!r}")
    found = tuple(listeners)
    for listener in found:
        if isinstance(listener, type) or not callable(getattr(listener, "on_event", None)):
            raise AITuneUserInputError(
                f"listeners must be objects with a method on_event(event), got {listener!r}; see aitune.events.Listener"
            )
    return found


def check_values(name: str, module: torch.nn.Module) -> None:
    """Make sure that a module can run at all.

    Raises:
        AITuneUserInputError: One of its parameters or buffers has no values yet.
    """
    tensors = [*module.named_parameters(), *module.named_buffers()]
    for path, tensor in tensors:
        if torch.nn.parameter.is_lazy(tensor):
            raise AITuneUserInputError(f"{name}: {path!r} has no shape yet; run the module once before it is wrapped")
        if tensor.device.type == "meta":
            raise AITuneUserInputError(
                f"{name}: {path!r} is on the meta device, so it has no values to run with; load the weights first "
                f"(module.to_empty(device='cpu'), then load_state_dict), or unwrap the module to leave it out"
            )


def hard_to_build(module: torch.nn.Module) -> list[str]:
    """Say what about a module most backends cannot take, and what to wrap in its place.

    Args:
        module: The original module.

    Returns:
        Sentences for people, none for an ordinary module.
    """
    said = []
    parts = list(module.modules())
    if any(isinstance(part, torch.jit.ScriptModule) for part in parts):
        said.append(
            "it is scripted or traced, so torch.export refuses it and few backends can be built; wrap the ordinary "
            "module instead"
        )
    if any(type(part).__module__.startswith(("torch.ao.nn.quantized", "torch.nn.quantized")) for part in parts):
        said.append(
            "it is quantised, which exporters of other runtimes refuse; wrap the module as it was before, and give "
            "accuracy_budget= to let backends quantise it"
        )
    tensors = [*module.named_parameters(), *module.named_buffers()]
    sparse = [name for name, tensor in tensors if tensor.layout is not torch.strided]
    if sparse:
        said.append(
            f"its weight {sparse[0]!r} is sparse, which exporters refuse; make it dense (weight.to_dense()) before the "
            f"module is wrapped, to see whether a backend is faster on it"
        )
    return said
