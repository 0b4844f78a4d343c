"""The device on which torch makes tensors when none is given, as far as that alone changes what functions do."""

from __future__ import annotations

import torch
from torch.overrides import _get_current_function_mode_stack
from torch.utils._device import DeviceContext

CPU = torch.device("cpu")


def default_device() -> torch.device | None:
    """Return the default device of this thread; ``None`` when other torch function modes are active.

    ``torch.set_default_device`` and ``with torch.device(...)`` are such modes too, but all that they do is this.
    """
    modes = _get_current_function_mode_stack()  # type: ignore[no-untyped-call]
    if any(type(mode) is not DeviceContext for mode in modes):
        return None
    device: torch.device = modes[-1].device if modes else CPU
    return device
