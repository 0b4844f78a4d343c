from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from aitune.torch.report.tune_report import TuneReport

PROGRAM = Path(__file__).with_name("run_without_packages.py")
PACKAGES = ["onnx", "onnxruntime", "onnxscript", "openvino", "torchao", "transformers"]


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> TuneReport:
    folder = tmp_path_factory.mktemp("without-packages")
    done = subprocess.run(
        [sys.executable, str(PROGRAM), str(folder), *PACKAGES], capture_output=True, text=True, timeout=280, check=False
    )
    assert done.returncode == 0, done.stderr
    return TuneReport.from_json((folder / "report.json").read_text())


@pytest.mark.slow
def test_what_was_left_out_is_named_with_the_command_that_installs_it(report: TuneReport) -> None:
    outcomes = {outcome.backend: outcome for outcome in report.module("mlp").graphs[0].outcomes}
    for backend, extra in (("ONNXRuntime", "onnx"), ("OpenVINO", "openvino")):
        assert outcomes[backend].status == "unavailable"
        assert f'pip install "aitune-open[{extra}]"' in str(outcomes[backend].reason)
    assert 'pip install "aitune-open[onnx]"' in " ".join(report.table().split())


@pytest.mark.slow
def test_eager_and_inductor_are_tried_all_the_same(report: TuneReport) -> None:
    outcomes = {outcome.backend: outcome for outcome in report.module("mlp").graphs[0].outcomes}
    assert outcomes["TorchEager"].is_baseline
    for backend in ("TorchInductorAot", "TorchInductorJit"):
        assert outcomes[backend].status == "ok", outcomes[backend].reason
        assert outcomes[backend].agreement is not None
        assert outcomes[backend].agreement.passed
    assert report.module("mlp").status in ("tuned", "original kept")
