"""Makes the file that later versions must still load: ``python make_golden_run.py FOLDER``.

It was run once for each format version; what it made lies in ``tests/artifact/data`` and is never made again.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

import torch
from tuned_parts import StoredEncoder, answers, tensors_of

import aitune.torch as ait
from aitune.artifact.manifest import FORMAT_VERSION
from aitune.testing.tiny_models import tiny_encoder_call
from aitune.torch.backend.onnx_runtime_backend import ONNXRuntimeBackend
from aitune.torch.backend.openvino_backend import OpenVINOBackend
from aitune.torch.task.outcome import (
    Agreement,
    BatchMeasurement,
    CandidateOutcome,
    GraphReport,
    OutputAgreement,
    PairedComparison,
)  # fmt: skip

SECRET = bytes(range(32))
SAMPLE = tiny_encoder_call(2, 5, seed=1)


def main(folder: Path) -> None:
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as name:
        builds = Path(name)
        onnx = StoredEncoder.build(ONNXRuntimeBackend(), builds / "onnx")
        openvino = StoredEncoder.build(OpenVINOBackend(), builds / "openvino").restore(builds / "alternative")
        tuned = onnx.tuned(builds / "chosen")
        chosen = tuned.module.graphs[0].backend
        agreement = Agreement(True, (OutputAgreement("output['hidden']", 1e-7, 1e-7, 1.0, 1e-7, 1e-5),), None, ("a",))
        times = (BatchMeasurement(2, 1.0, 1.1, 1.2, 0.9, 1.1, 50),)
        made = {"status": "ok", "stage": "measure", "agreement": agreement, "measurements": times}
        outcomes = (
            CandidateOutcome("TorchEager", "original", "the original", "ok", "measure", is_baseline=True,
                             measurements=(BatchMeasurement(2, 2.0, 2.1, 2.2, 1.9, 2.1, 50),)),
            CandidateOutcome("ONNXRuntime", chosen.key(), "ONNXRuntime", recovery="artifact", **made),
            CandidateOutcome("OpenVINO", openvino.key(), "OpenVINO", recovery="artifact", state=openvino.to_dict(),
                             **made),
        )  # fmt: skip
        compared = PairedComparison(chosen.key(), "original", 2.0, 1.9, 2.1, 0.995, "faster", 10, 10, 1.0, "2.0x")
        chosen.tuning_report = GraphReport(
            "encoder", "graph0", "", {"strategy": "MaxThroughputStrategy"}, outcomes, (compared,), chosen.key(),
            "faster than the original", 1.0,
        )  # fmt: skip
        target = folder / f"golden_v{FORMAT_VERSION}.ait"
        ait.save(tuned, target, include_original_weights=True, sign=SECRET)
        expected = [tensor.tolist() for tensor in tensors_of(answers(tuned, [SAMPLE])[0])]
        (folder / f"golden_v{FORMAT_VERSION}.json").write_text(json.dumps(expected))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
