from pathlib import Path

import pytest
from strategy_parts import Bench


@pytest.fixture(scope="module", autouse=True)
def _cheap_collections(cheap_collections: None) -> None:
    """Every test here measures."""


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)
