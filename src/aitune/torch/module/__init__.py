"""Capture calls of a module and run it on what was tuned."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aitune.utils.lazy_names import lazy_names

if TYPE_CHECKING:
    from aitune.torch.module.wrapper_module import Module, ModuleState

__all__ = ["Module", "ModuleState"]

__getattr__, __dir__ = lazy_names(__name__, {"wrapper_module": ("Module", "ModuleState")})
