"""Tunes a module in a process that cannot find the packages named on the command line; prints the report as JSON."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType


class Absent:
    """A finder that finds none of these packages, and lets nobody else find them."""

    def __init__(self, packages: Sequence[str]) -> None:
        self._packages = frozenset(packages)

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name.partition(".")[0] in self._packages:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return None


def main(folder: Path, packages: Sequence[str]) -> None:
    sys.meta_path.insert(0, Absent(packages))
    import torch

    import aitune.torch as ait
    from aitune.testing.tiny_models import TinyMLP, seeded
    from aitune.torch.config import config

    torch.set_num_threads(1)
    config.cache_dir = folder
    model = ait.Module(seeded(TinyMLP), "mlp")
    report = ait.tune(model, [torch.randn(8) for _ in range(8)], batch_sizes=[1, 8])
    print(report.to_json(), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
