"""Quieten libraries that log a lot while they export and compile."""

from __future__ import annotations

import logging
from collections.abc import Iterator
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
        for logger in loggers:
            logger.setLevel(logging.ERROR)
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
