import pytest


@pytest.fixture(scope="module", autouse=True)
def _cheap_collections(cheap_collections: None) -> None:
    """Every test here measures."""
