"""Artifacts made by hand: no torch, no backend, a few members."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec

from aitune.artifact.graph_record import GraphRecord
from aitune.artifact.manifest import (
    FORMAT,
    FORMAT_VERSION,
    BackendRecord,
    EnvironmentRecord,
    FileRecord,
    Manifest,
    ModuleRecord,
    TunedGraphRecord,
)  # fmt: skip
from aitune.artifact.writing import ArtifactWriter

GRAPH: dict[str, Any] = {
    "name": "graph0",
    "symbols": [{"name": "batch0", "min": 1, "max": 8, "opt": None, "is_batch": True}],
    "inputs": {
        "structure": json.dumps(
            [1, {"type": "builtins.dict", "context": '["x"]', "children_spec": [
                {"type": None, "context": None, "children_spec": []}]}]),
        "strict": True,
        "leaves": [{
            "locator": ["x"], "axes": [{"size": 1, "symbol": "batch0"}, {"size": 8, "symbol": None}],
            "dtype": "float32", "device": "cpu",
        }],
    },
    "outputs": {
        "structure": json.dumps([1, {"type": None, "context": None, "children_spec": []}]),
        "strict": False,
        "leaves": [{
            "locator": [], "axes": [{"size": 1, "symbol": "batch0"}], "dtype": "float32", "device": "cpu",
        }],
    },
    "signature": {
        "positional": ["x"], "num_positional_only": 0, "var_positional": None, "keyword_only": [],
        "var_keyword": None, "required": ["x"], "indirect": False, "by_name": [],
    },
}  # fmt: skip


def graph(**changes: Any) -> GraphRecord:
    return msgspec.convert({**GRAPH, **changes}, GraphRecord)


def environment() -> EnvironmentRecord:
    return EnvironmentRecord(
        python="3.11", system="Linux", machine="x86_64", processor="some", processor_features=("avx2",),
        torch="2.13.0", packages={"onnxruntime": "1.32.0"},
    )  # fmt: skip


def backend(files: tuple[FileRecord, ...] = (), **changes: Any) -> BackendRecord:
    return BackendRecord(
        **{"name": "ONNXRuntime", "key": "key", "description": "ONNX", "state": {}, "files": files, **changes}
    )


def manifest(writer: ArtifactWriter, *backends: BackendRecord, **changes: Any) -> Manifest:
    tuned = TunedGraphRecord(graph=graph(), backends=backends or (backend(),))
    module = ModuleRecord(name="encoder", class_name="a.B", place=(), tensors=(), graphs=(tuned,))
    fields = {
        "format": FORMAT, "version": FORMAT_VERSION, "created": "2026-01-01", "aitune": "0.1.0",
        "environment": environment(), "members": writer.members, "modules": (module,),
    }  # fmt: skip
    return Manifest(**{**fields, **changes})


def write_artifact(path: Path, *contents: bytes, sign: Any = None) -> Path:
    """Write an artifact with one file for each of some contents: ``build/0``, ``build/1`` and so on."""
    writer = ArtifactWriter()
    files = tuple(writer.add_bytes(content, f"build/{number}") for number, content in enumerate(contents))
    with path.open("wb") as stream:
        writer.write(stream, manifest(writer, backend(files)), sign)
    return path
