"""Tunes a module in a process that cannot find some packages; writes the report beside the cache."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any


class Without:
    """A finder that finds what another one does, apart from some packages."""

    def __init__(self, finder: Any, packages: Sequence[str]) -> None:
        self._finder = finder
        self._packages = frozenset(packages)

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name.partition(".")[0] in self._packages:
            return None
        found: ModuleSpec | None = self._finder.find_spec(name, path, target)
        return found


def main(folder: Path, packages: Sequence[str]) -> None:
    sys.meta_path[:] = [Without(finder, packages) for finder in sys.meta_path]
    import torch

    import aitune.torch as ait
    from aitune.testing.tiny_models import TinyMLP, seeded
    from aitune.torch.config import config

    torch.set_num_threads(1)
    config.cache_dir = folder / "cache"
    model = ait.Module(seeded(TinyMLP), "mlp")
    report = ait.tune(model, [torch.randn(8) for _ in range(8)], batch_sizes=[1, 8])
    (folder / "report.json").write_text(report.to_json())


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
