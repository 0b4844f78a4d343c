import gc

import pytest


@pytest.fixture(scope="module", autouse=True)
def _cheap_collections():
    """Each measurement collects garbage; what lives already need not be walked every time."""
    gc.freeze()
    yield
    gc.unfreeze()
