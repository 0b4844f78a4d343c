from __future__ import annotations

import logging

import pytest

from aitune.utils.external_logging import quiet_external_logging

NAMES = ("torch", "torch.onnx", "openvino", "onnx_ir", "onnxscript.some.part")


@pytest.mark.parametrize("enabled", [True, False])
def test_levels_hold_inside_the_block_and_are_put_back_after_it(enabled: bool) -> None:
    loggers = [logging.getLogger(name) for name in NAMES]
    loggers[1].setLevel(logging.DEBUG)
    before = [logger.level for logger in loggers]
    # Each logger remembers its answers, those below it as well.
    answers = [logger.isEnabledFor(logging.WARNING) for logger in loggers]
    try:
        with quiet_external_logging(enabled):
            inside = [logger.isEnabledFor(logging.WARNING) for logger in loggers]
            assert inside == ([False] * len(loggers) if enabled else answers)
            assert all(logger.isEnabledFor(logging.ERROR) for logger in loggers)
        assert [logger.level for logger in loggers] == before
        assert [logger.isEnabledFor(logging.WARNING) for logger in loggers] == answers
        with pytest.raises(KeyboardInterrupt), quiet_external_logging(enabled):
            raise KeyboardInterrupt
        assert [logger.isEnabledFor(logging.WARNING) for logger in loggers] == answers
    finally:
        loggers[1].setLevel(logging.NOTSET)
