from __future__ import annotations

import json
import subprocess
import sys


def test_the_artifact_is_read_without_torch() -> None:
    program = (
        "import json, sys, aitune.artifact as a\n"
        "for name in a.__all__: getattr(a, name)\n"
        "print(json.dumps(sorted(sys.modules)))"
    )
    answer = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    loaded = set(json.loads(answer.stdout))
    assert "aitune.artifact.reading" in loaded
    assert not loaded & {"torch", "numpy", "safetensors", "cryptography", "fsspec", "onnxruntime", "openvino"}
