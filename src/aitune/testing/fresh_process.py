"""Restores a backend in a process of its own and runs it there.

``python -m aitune.testing.fresh_process FOLDER`` does the part of the child: it reads what
:func:`infer_in_fresh_process` wrote to the folder.
"""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from aitune.torch.backend.artifact_path import ArtifactPath
from aitune.torch.backend.registry import BackendEntry, registry

_ARTIFACT = "artifact path"


def state_to_json(state: Mapping[str, Any]) -> str:
    """Write a backend's state as JSON; fails for anything that is neither plain data nor an artifact path.

    Args:
        state: What ``to_dict`` gave.
    """

    def encode(value: Any) -> Any:
        if isinstance(value, ArtifactPath):
            return {_ARTIFACT: [str(value.root), value.relative_path.as_posix()]}
        raise TypeError(f"a backend's state holds a {type(value).__name__}: {value!r}")

    return json.dumps(state, default=encode)


def state_from_json(text: str) -> dict[str, Any]:
    """Read what :func:`state_to_json` wrote.

    Args:
        text: The JSON.
    """

    def decode(value: dict[str, Any]) -> Any:
        if set(value) == {_ARTIFACT}:
            root, relative = value[_ARTIFACT]
            return ArtifactPath(Path(root), Path(relative))
        return value

    decoded: dict[str, Any] = json.loads(text, object_hook=decode)
    return decoded


def infer_in_fresh_process(
    state: Mapping[str, Any],
    calls: Sequence[Sequence[torch.Tensor]],
    folder: Path,
    module_factory: str | None = None,
    entry: BackendEntry | None = None,
) -> list[list[torch.Tensor]]:
    """Restore a backend from its state in a new process and run calls there.

    Args:
        state: What ``to_dict`` gave.
        calls: Input tensors of each call, in the order of the graph's input spec.
        folder: Empty folder for the files that the processes exchange.
        module_factory: Where a function without arguments makes the original module, ``"package.module:function"``;
            ``None`` restores without one.
        entry: The backend, when it is not one of aitune's own.

    Returns:
        Output tensors of each call.

    Raises:
        RuntimeError: The process failed; the message holds what it wrote.
    """
    from safetensors.torch import load_file, save_file

    job = {"module_factory": module_factory, "entry": asdict(entry) if entry else None, "calls": len(calls)}
    (folder / "job.json").write_text(json.dumps(job))
    (folder / "state.json").write_text(state_to_json(state))
    save_file({f"{c}.{t}": x.contiguous() for c, ts in enumerate(calls) for t, x in enumerate(ts)}, folder / "inputs")
    child = subprocess.run(
        [sys.executable, "-m", __name__, str(folder)], capture_output=True, text=True, timeout=280, check=False
    )
    if child.returncode != 0:
        raise RuntimeError(f"the fresh process ended with {child.returncode}:\n{child.stdout}\n{child.stderr}")
    return _grouped(load_file(folder / "outputs"), len(calls))


def _grouped(tensors: Mapping[str, torch.Tensor], count: int) -> list[list[torch.Tensor]]:
    names = sorted(tensors, key=lambda name: [int(part) for part in name.split(".")])
    return [[tensors[name] for name in names if name.startswith(f"{number}.")] for number in range(count)]


def _located(location: str) -> Any:
    module_name, _, name = location.partition(":")
    return getattr(importlib.import_module(module_name), name)


def main(folder: Path) -> None:
    """Do the part of the child.

    Args:
        folder: Folder with the job; the outputs go there too.
    """
    from safetensors.torch import load_file, save_file

    job = json.loads((folder / "job.json").read_text())
    if job["entry"]:
        fields: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in job["entry"].items()}
        registry.register(BackendEntry(**fields))
    module = _located(job["module_factory"])() if job["module_factory"] else None
    backend = registry.restore(module, state_from_json((folder / "state.json").read_text()))
    backend.activate()
    spec = backend.graph_spec
    outputs = {}
    for number, tensors in enumerate(_grouped(load_file(folder / "inputs"), job["calls"])):
        sample = spec.make_call(tensors)
        answers = spec.output_spec.tensors_of(backend.infer(*sample.args, **sample.kwargs))
        outputs.update({f"{number}.{t}": answer.contiguous().clone() for t, answer in enumerate(answers)})
    save_file(outputs, folder / "outputs")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
