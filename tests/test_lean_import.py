"""Importing the package must stay cheap: optional and slow modules are loaded when they are used."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

FORBIDDEN = (
    "onnx",
    "onnxruntime",
    "onnxscript",
    "openvino",
    "tensorrt",
    "torch_tensorrt",
    "torchao",
    "transformers",
    "diffusers",
    "scipy",
    "rich",
    "typer",
    "torch._dynamo",
    "torch._inductor",
    "torch.onnx",
)

REPORT_MODULES = "import json, sys; print(json.dumps(sorted(sys.modules)))"

# On a machine without a GPU `torch.cuda.is_initialized()` is always false, so the questions themselves are counted.
COUNT_CUDA_CALLS = """
import json
import torch

calls = []

def counted(name):
    original = getattr(torch.cuda, name)

    def wrapper(*args, **kwargs):
        calls.append(name)
        return original(*args, **kwargs)

    return wrapper

for name in ("_lazy_init", "init", "is_available", "device_count", "current_device", "get_device_properties"):
    setattr(torch.cuda, name, counted(name))
IMPORT
print(json.dumps(calls))
"""

USE_NAMES = "import aitune.torch\nfor name in aitune.torch.__all__:\n    getattr(aitune.torch, name)"


def in_fresh_process(program: str) -> list[str]:
    """Run ``program`` in a new interpreter and return the list that it prints."""
    answer = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert answer.returncode == 0, answer.stderr
    result: list[str] = json.loads(answer.stdout)
    return result


@pytest.fixture(scope="module")
def modules_of_torch() -> frozenset[str]:
    """What ``import torch`` loads by itself; its list differs between releases."""
    return frozenset(in_fresh_process(f"import torch\n{REPORT_MODULES}"))


@pytest.mark.parametrize(
    "statements",
    ["import aitune.torch", USE_NAMES],
    ids=["import", "every public name"],
)
def test_optional_and_slow_modules_are_not_loaded(statements: str, modules_of_torch: frozenset[str]) -> None:
    added = set(in_fresh_process(f"{statements}\n{REPORT_MODULES}")) - modules_of_torch
    assert "aitune.torch" in added
    loaded = {name for name in added for root in FORBIDDEN if name == root or name.startswith(root + ".")}
    assert not loaded


@pytest.mark.parametrize("statements", ["import aitune.torch", USE_NAMES], ids=["import", "every public name"])
def test_cuda_is_not_asked_about(statements: str) -> None:
    assert in_fresh_process(COUNT_CUDA_CALLS.replace("IMPORT", statements)) == []


def test_the_probe_sees_a_question_about_cuda() -> None:
    assert "is_available" in in_fresh_process(COUNT_CUDA_CALLS.replace("IMPORT", "torch.cuda.is_available()"))


def test_importing_the_package_alone_does_not_load_torch() -> None:
    assert "torch" not in in_fresh_process(f"import aitune\n{REPORT_MODULES}")
