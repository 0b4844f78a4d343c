import math
from pathlib import Path

import pytest
from report_parts import agreeing, measured

from aitune.torch.backend.artifact_path import ArtifactPath
from aitune.torch.report.environment import Environment
from aitune.torch.report.tune_report import ModuleReport, TuneReport
from aitune.torch.task.outcome import (
    Agreement,
    CandidateOutcome,
    GraphReport,
    OutputAgreement,
    PairedComparison,
    Rejection,
)

BASELINE = CandidateOutcome(
    "TorchEager", "baseline", "original module", "ok", "measure",
    is_baseline=True, measurements=measured((1, 4.0), (8, 20.0)),
)  # fmt: skip
WINNER = CandidateOutcome(
    "ONNXRuntime", "onnx-key", "ONNX Runtime", "ok", "measure",
    build_seconds=2.5, agreement=agreeing(2.5e-7), measurements=measured((1, 2.0), (8, 10.0)), recovery="artifact",
    state={"model": "model.onnx", "options": {"threads": 2, "scales": [1.5, 2.0]}}, notes=("one session",),
)  # fmt: skip
MEASURED_ONLY = CandidateOutcome(
    "TorchInductorJit", "jit-key", "Inductor JIT", "ok", "measure",
    build_seconds=20.0, agreement=agreeing(1e-7), measurements=measured((1, 5.0), (8, 40.0)),
)  # fmt: skip
WRONG = CandidateOutcome(
    "OpenVINO", "openvino-key", "OpenVINO f32", "rejected", "check",
    reason="value differs at output[0, 3] (sample 3): got 1.5, expected 1.25, allowed 1e-5",
    build_seconds=2.0,
    agreement=Agreement(
        False, (OutputAgreement("output", 0.2, 0.3, 0.9, None, 1e-5),),
        Rejection("value", "output", (0, 3), "1.5", "1.25", "1e-5", "sample 3"),
    ),
)  # fmt: skip
MISSING_PACKAGE = CandidateOutcome(
    "TensorRT", "tensorrt-key", "TensorRT", "unavailable", "availability",
    reason='tensorrt not installed; run: pip install "aitune-open[tensorrt]"',
)  # fmt: skip
BROKEN = CandidateOutcome(
    "TorchInductorAot", "aot-key", "Inductor AOT", "failed", "build", reason="no such operator: " + "x" * 600,
    error_type="BuildError",
)  # fmt: skip


@pytest.fixture
def graph() -> GraphReport:
    return GraphReport(
        module="encoder",
        graph="graph0",
        description="x: float32[batch0, 16] -> output: float32[batch0, 4] (batch0 1..8)",
        strategy={"name": "MaxThroughputStrategy", "seed": 0},
        outcomes=(BASELINE, WINNER, MEASURED_ONLY, WRONG, MISSING_PACKAGE, BROKEN),
        comparisons=(
            PairedComparison("onnx-key", "baseline", 1.97, 1.91, 2.03, 0.995, "faster", 14, 12, 3.5, "clearly faster"),
        ),
        winner="onnx-key",
        reason="faster than the original by more than the noise",
        seconds=31.5,
        warnings=("batch size 64 ran out of memory",),
    )


@pytest.fixture
def environment() -> Environment:
    return Environment(
        "3.11.7", "Linux 6.1 x86_64", "Some Processor", ("avx2",), 4, 2, 8 * 1024**3, "2.13.0",
        {"onnxruntime": "1.32.0"}, (), "/usr/bin/g++",
    )  # fmt: skip


@pytest.fixture
def report(graph: GraphReport, environment: Environment) -> TuneReport:
    return TuneReport(
        modules=(
            ModuleReport("encoder", "tuned", (graph,)),
            ModuleReport("head", "not called", (), "the function never called it"),
        ),
        environment=environment,
        settings={"batch_sizes": [1, 8], "time_budget": math.inf, "$float": "a name like ours", "nested": {"a": None}},
        seconds=40.25,
        warnings=("the clock was disturbed",),
    )


@pytest.fixture
def artifact(tmp_path: Path) -> ArtifactPath:
    return ArtifactPath(tmp_path, Path("model.onnx"))
