"""Every test has its own registry of wrapped modules, its own cache folder, and one thread."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from aitune.torch.config import config
from aitune.torch.module.registry import fresh_module_registry


@pytest.fixture(autouse=True)
def own_surroundings(tmp_path: Path) -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    with fresh_module_registry(), config.override(cache_dir=tmp_path / "aitune-cache"):
        yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def cheap_collections() -> Iterator[None]:
    """For tests whose every measurement collects garbage: what lives already is not walked each time."""
    gc.freeze()
    yield
    gc.unfreeze()
