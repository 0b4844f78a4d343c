"""Keep what converters say about themselves from a user who did not call them."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

# Says for each run that torchvision, which nothing here needs, is not installed.
_TALKATIVE = "torch.onnx._internal.exporter._registration"


@contextmanager
def quiet_converters() -> Iterator[None]:
    """Hold back warnings and one logger's notes inside the block; errors still raise. Levels are put back after it."""
    logger = logging.getLogger(_TALKATIVE)
    level = logger.level
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        logger.setLevel(logging.ERROR)
        try:
            yield
        finally:
            logger.setLevel(level)
