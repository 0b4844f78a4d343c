"""Notices forward hooks that submodules got after tuning: what was compiled does not run them."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn.modules import module as torch_module
from torch.utils.hooks import RemovableHandle

from aitune.torch.module.module_parts import named_parts

EVERY_MODULE = "every module"
_FORWARD_HOOKS = ("_forward_hooks", "_forward_pre_hooks")
_FOUND = -1


class HookWatch:
    """Compares the forward hooks of the submodules with what they were.

    Hooks of the module itself do not matter: they run around the tuned forward. Those of every module
    (``torch.nn.modules.module.register_module_forward_hook``) do, for a module that has submodules.

    Attributes:
        last_handle: ``RemovableHandle.next_id`` of the last look that found nothing. Every hook of the process takes
            the next number, so as long as the two are the same :meth:`added` need not be asked.

    Args:
        module: The module whose submodules are watched.
    """

    def __init__(self, module: torch.nn.Module) -> None:
        self._module = module
        self._known = frozenset(_hooks(module))
        self.last_handle = RemovableHandle.next_id

    def added(self) -> str | None:
        """Return the name of a submodule that has a new forward hook, ``None`` when there is none."""
        last = RemovableHandle.next_id
        try:
            found = next((name for key, name in _hooks(self._module).items() if key not in self._known), None)
        except RuntimeError:
            # Another thread is changing the module: look again at the next call.
            found = "a submodule"
        self.last_handle = last if found is None else _FOUND
        return found


def submodules_with_hooks(module: torch.nn.Module) -> list[str]:
    """Return the names of the submodules that have forward hooks.

    Args:
        module: The module; its own hooks do not count.
    """
    return list(dict.fromkeys(_hooks(module).values()))


def global_hooks() -> list[dict[int, Any]]:
    """Return the dictionaries of the forward hooks that torch runs for every module of the process."""
    return [torch_module._global_forward_hooks, torch_module._global_forward_pre_hooks]


def _hooks(module: torch.nn.Module) -> dict[tuple[Any, ...], str]:
    parts = [(name, part) for name, part in named_parts(module) if name]
    found: dict[tuple[Any, ...], str] = {
        (kind, name, number): name
        for name, part in parts
        for kind in _FORWARD_HOOKS
        for number in getattr(part, kind, ())
    }
    if parts:
        everywhere = zip(_FORWARD_HOOKS, global_hooks(), strict=True)
        found.update({(kind, number): EVERY_MODULE for kind, hooks in everywhere for number in hooks})
    return found
