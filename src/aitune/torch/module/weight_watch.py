"""Notices that the weights of a module are no longer the ones a backend was built with."""

from __future__ import annotations

import torch


class WeightWatch:
    """Compares parameters and buffers, by object and by version counter, with what they were.

    Writes through ``.data`` move no version counter and are not seen.

    Args:
        module: The module whose weights are watched.
    """

    def __init__(self, module: torch.nn.Module) -> None:
        self._module = module
        self._entries = _snapshot(module)

    def changed(self) -> str | None:
        """Return the name of the first tensor that was replaced or written to, ``None`` when there is none."""
        for holder, key, tensor, version, name in self._entries:
            if holder.get(key) is not tensor or (version >= 0 and tensor._version != version):
                return name
        return None

    def refresh(self) -> None:
        """Take the weights as they are now for the ones that the backend holds."""
        self._entries = _snapshot(self._module)


_Entry = tuple["dict[str, torch.Tensor | None]", str, torch.Tensor, int, str]


def _snapshot(module: torch.nn.Module) -> list[_Entry]:
    entries: list[_Entry] = []
    for prefix, part in module.named_modules(remove_duplicate=True):
        for holder in (part._parameters, part._buffers):
            for key, tensor in holder.items():
                if tensor is not None:
                    # Inference tensors count no versions.
                    version = -1 if tensor.is_inference() else tensor._version
                    name = f"{prefix}.{key}" if prefix else key
                    entries.append((holder, key, tensor, version, name))
    return entries
