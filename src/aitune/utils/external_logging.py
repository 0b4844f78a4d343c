"""Quieten libraries that log a lot while they export and compile."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

_NOISY = (
    "torch",
    "torch.onnx",
    "torch.export",
    "torch._dynamo",
    "torch._inductor",
    "onnxscript",
    "onnx_ir",
    "openvino",
)


@contextmanager
def quiet_external_logging(enabled: bool) -> Iterator[None]:
    """Let exporters and compilers log errors alone inside the block; their levels are put back after it.

    Args:
        enabled: Whether to do anything.
    """
    loggers = [logging.getLogger(name) for name in _NOISY] if enabled else []
    levels = [logger.level for logger in loggers]
    try:
        _set_levels(loggers, [logging.ERROR] * len(loggers))
        yield
    finally:
        _set_levels(loggers, levels)


def _set_levels(loggers: Sequence[logging.Logger], levels: Sequence[int]) -> None:
    # setLevel makes every logger of the process forget what it knows, a millisecond each time: once is enough.
    for logger, level in zip(loggers, levels, strict=True):
        logger.level = level
    for logger, level in zip(loggers[:1], levels, strict=False):
        logger.setLevel(level)
