"""Keep what converters say about themselves from a user who did not call them."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

logger = logging.getLogger(__name__)

# Says for each run that torchvision, which nothing here needs, is not installed.
_TALKATIVE = "torch.onnx._internal.exporter._registration"


@contextmanager
def quiet_converters() -> Iterator[None]:
    """Hold back warnings and notes inside the block, and log graphs that are dumped at debug level; errors still raise.

    Levels, filters and handlers are put back after it, the root logger's too: OpenVINO changes all three when a
    conversion fails, and its handler would write to the terminal what anybody logs from then on.
    """
    talkative, root = logging.getLogger(_TALKATIVE), logging.getLogger()
    before = [(noisy, noisy.level, list(noisy.filters), list(noisy.handlers)) for noisy in (talkative, root)]
    with warnings.catch_warnings(), _dumps_in_log():
        warnings.simplefilter("ignore")
        talkative.setLevel(logging.ERROR)
        try:
            yield
        finally:
            for noisy, level, filters, handlers in before:
                noisy.setLevel(level)
                noisy.filters[:] = filters
                noisy.handlers[:] = handlers


@contextmanager
def _dumps_in_log() -> Iterator[None]:
    """Keep the tracing exporter off the terminal: it turns torch's own log on, and never off again.

    Its code asks whether a function is true where it means to call it.
    """
    held = {"_jit_onnx_log": _log_dump, "_jit_set_onnx_log_enabled": _leave_as_it_is}
    before = {name: getattr(torch._C, name) for name in held if hasattr(torch._C, name)}
    for name in before:
        setattr(torch._C, name, held[name])
    try:
        yield
    finally:
        for name, function in before.items():
            setattr(torch._C, name, function)


def _log_dump(*parts: Any) -> None:
    logger.debug("%s" * len(parts), *parts)


def _leave_as_it_is(enabled: bool) -> None:
    """Do nothing in place of turning torch's log on or off."""
