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
    """Hold back warnings and one logger's notes inside the block; errors still raise.

    Levels and filters are put back after it, the root logger's too: OpenVINO changes them when a conversion fails.
    """
    talkative, root = logging.getLogger(_TALKATIVE), logging.getLogger()
    before = [(logger, logger.level, list(logger.filters)) for logger in (talkative, root)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        talkative.setLevel(logging.ERROR)
        try:
            yield
        finally:
            for logger, level, filters in before:
                logger.setLevel(level)
                logger.filters[:] = filters
