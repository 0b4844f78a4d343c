"""A backend that gets one kind of operation wrong, as a runtime with a bad kernel would."""

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from aitune.testing.fakes import FakeBackend


class BadKernel(TorchDispatchMode):
    """Makes every GELU a thousandth too large."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        return result * 1.001 if func is torch.ops.aten.gelu.default else result


class BadGeluBackend(FakeBackend):
    """Runs the original with :class:`BadKernel`."""

    def __init__(self) -> None:
        super().__init__("bad gelu")

    def _infer(self, *args, **kwargs):
        with BadKernel():
            return super()._infer(*args, **kwargs)
