"""What a converter has to say reaches the log, not the terminal."""

from __future__ import annotations

import ctypes
import logging
import warnings
from pathlib import Path

import pytest
import torch

from aitune.exceptions import ExportError
from aitune.testing.graphs import call, record_graph
from aitune.torch.backend.export_onnx import onnx_from_trace
from aitune.torch.backend.flat_module import FlatModule
from aitune.torch.backend.quiet_converters import quiet_converters


class Untranslatable(torch.nn.Module):
    """Does what a trace can follow, with an operator that ONNX does not have."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        eigenvalues: torch.Tensor = torch.linalg.eigvalsh(x @ x.T)
        return eigenvalues


def test_the_graph_that_the_tracing_exporter_dumps_is_logged_and_not_printed(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    module, x = Untranslatable(), torch.eye(3)
    graph_spec, _ = record_graph(module, [call(x)])
    was_enabled = torch._C._jit_is_onnx_log_enabled()
    with (
        caplog.at_level(logging.DEBUG, logger="aitune"),
        pytest.raises(ExportError, match=r"tracing ONNX exporter failed: UnsupportedOperatorError"),
    ):
        onnx_from_trace(FlatModule(module, graph_spec), (x,), graph_spec, tmp_path)
    # Torch writes it from C++, into a buffer that is emptied when the process ends.
    ctypes.CDLL(None).fflush(None)
    assert capfd.readouterr() == ("", "")
    assert "aten::linalg_eigvalsh" in caplog.text
    assert torch._C._jit_is_onnx_log_enabled() == was_enabled


def test_settings_of_the_process_are_as_before_when_a_conversion_fails() -> None:
    def settings() -> list[object]:
        root = logging.getLogger()
        log = (torch._C._jit_onnx_log, torch._C._jit_set_onnx_log_enabled)
        return [root.level, list(root.filters), list(root.handlers), list(warnings.filters), *log]

    def fail_as_openvino_does() -> None:
        with quiet_converters():
            logging.getLogger().setLevel(logging.CRITICAL)
            logging.getLogger().addFilter(lambda record: False)
            logging.getLogger().addHandler(logging.StreamHandler())
            raise KeyError

    before = settings()
    with pytest.raises(KeyError):
        fail_as_openvino_does()
    assert settings() == before
