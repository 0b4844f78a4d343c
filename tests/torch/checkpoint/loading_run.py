"""Loads an artifact in a process of its own and runs calls on it. Any unpickling ends the process.

``python loading_run.py FOLDER``: the folder holds ``job.json`` with: ``path`` of the file; ``calls``, the number of
calls, whose input tensors are in ``inputs``; ``factory``, the function that makes the module
("module:function"; nothing loads without); ``imports``, modules to import before; ``options`` for ``ait.load``.
"""

from __future__ import annotations

import importlib
import json
import pickle
import sys
from pathlib import Path
from typing import Any


def forbid_unpickling() -> None:
    """Make every way to unpickle fail, in Python and in C."""

    def refuse(*args: Any, **kwargs: Any) -> Any:
        raise AssertionError("something was unpickled")

    def watch(event: str, arguments: Any) -> None:
        if event == "pickle.find_class":
            raise AssertionError(f"a pickle asked for {arguments}")

    class Refusing:
        # A class, because modules that are imported later derive from it.
        __init__ = refuse

    sys.addaudithook(watch)
    for name in ("load", "loads", "_load", "_loads"):
        setattr(pickle, name, refuse)
    for name in ("Unpickler", "_Unpickler"):
        setattr(pickle, name, Refusing)
    sys.modules["_pickle"] = type(sys)("_pickle")


def main(folder: Path) -> None:
    import torch
    from safetensors.torch import load_file, save_file
    from torch.utils import _pytree as pytree

    import aitune.torch as ait

    job = json.loads((folder / "job.json").read_text())
    torch.set_num_threads(1)
    module = None
    for name in job.get("imports", ()):
        importlib.import_module(name)
    if job.get("factory"):
        home, _, function = job["factory"].partition(":")
        module = getattr(importlib.import_module(home), function)()
    if job.get("forbid_unpickling", True):
        forbid_unpickling()
    loaded = ait.load(module, job["path"], **job.get("options", {}))
    inputs = load_file(folder / "inputs")
    outputs, structures = {}, []
    for number in range(job["calls"]):
        names = sorted((name for name in inputs if name.startswith(f"{number}.")), key=lambda n: int(n.split(".")[1]))
        graph = loaded.graph_specs[job.get("graphs", [0] * job["calls"])[number]]
        sample = graph.make_call([inputs[name] for name in names])
        with torch.no_grad():
            output = loaded(*sample.args, **sample.kwargs)
        structures.append(str(pytree.tree_structure(output)))
        tensors = [leaf for leaf in pytree.tree_leaves(output) if isinstance(leaf, torch.Tensor)]
        outputs.update({f"{number}.{t}": tensor.contiguous().clone() for t, tensor in enumerate(tensors)})
    stats = loaded.stats()
    served, fallbacks = sum(stats.served.values()), sum(stats.fallbacks.values())
    save_file(outputs, folder / "outputs")
    answer = {"structures": structures, "served": served, "fallbacks": fallbacks}
    (folder / "answer.json").write_text(json.dumps(answer))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
