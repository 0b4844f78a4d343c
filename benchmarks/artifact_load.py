"""How long does loading a tuned model from a file take, against what the runtime alone needs for the same model?

all-MiniLM-L6-v2 (90 MB of weights) is built once for each runtime and saved. Then fresh processes take turns, in random
order within each round, so that a machine that slows down slows all: one opens the model file with the runtime's own
calls and runs one sentence, the others do the same through ``ait.load``, without the original module and with it. Each
prints the time from the first call to the first answer; imports are done before and are not counted. The first round
warms the file cache and is not counted. ``aitune show`` and ``aitune verify`` are timed as whole processes.

ONNX Runtime is timed alone on two forms of the model: as one ONNX file, and with the weights beside the model, which is
what the backend writes, because the runtime loads it in less than half the time. The ratio that is asked for is the one
to the first; the difference to the second is what reading, checking and writing out the artifact's bytes takes.
"""

from __future__ import annotations

import argparse
import functools
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from bench_tools import Requirement, in_turn, plain, print_requirements, write_json

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "examples"))

import demo

import aitune.torch as ait
from aitune.testing.graphs import record_graph
from aitune.torch.backend.registry import registry
from aitune.torch.module.plain_data import graph_spec_to_dict
from aitune.torch.module.sample import Sample

ALLOWED_RATIO = 1.3
ALONE = "runtime alone"
ALLOWED_COMMAND_SECONDS = 0.5
BACKENDS = ("ONNXRuntime", "OpenVINO")
BATCH_SIZES = (1, 8)

_PREPARE = """
import sys, time, torch
torch.set_num_threads(int(sys.argv[2]))
inputs = {name: torch.ones(1, 16, dtype=torch.long) for name in ("input_ids", "token_type_ids", "attention_mask")}
"""

_SDK = {
    "ONNXRuntime": """
import onnxruntime
begin = time.perf_counter()
options = onnxruntime.SessionOptions()
options.intra_op_num_threads, options.inter_op_num_threads = int(sys.argv[2]), 1
session = onnxruntime.InferenceSession(sys.argv[1], options, providers=["CPUExecutionProvider"])
session.run(None, {entry.name: tensor.numpy() for entry, tensor in zip(session.get_inputs(), inputs.values())})
print(time.perf_counter() - begin)
""",
    "OpenVINO": """
import openvino
begin = time.perf_counter()
core = openvino.Core()
settings = {"INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": int(sys.argv[2]), "ENABLE_CPU_PINNING": False,
            "PERFORMANCE_HINT": "LATENCY"}
model = core.compile_model(core.read_model(sys.argv[1]), "CPU", settings)
model([tensor.numpy() for tensor in inputs.values()])
print(time.perf_counter() - begin)
""",
}

_LOAD = """
import importlib
import transformers.modeling_outputs
import aitune.torch as ait
import aitune.torch.saving
import {package}
import {adapter}
{module}
begin = time.perf_counter()
model = ait.load({given}, sys.argv[1], strict=True)
with torch.no_grad():
    model(**inputs)
print(time.perf_counter() - begin)
assert sum(model.stats().served.values()) == 1, model.stats()
"""

_MODULE = """
sys.path.insert(0, {examples!r})
import demo
encoder, _ = demo.load(demo.weights_folder())
"""


def load_program(backend: str, with_module: bool) -> str:
    """Return the program that loads an artifact.

    Args:
        backend: Name of the backend.
        with_module: Whether the original module is given.
    """
    package, adapter = {
        "ONNXRuntime": ("onnxruntime", "aitune.torch.backend.onnx_runtime_backend"),
        "OpenVINO": ("openvino", "aitune.torch.backend.openvino_backend"),
    }[backend]
    examples = str(Path(__file__).resolve().parent.parent / "examples")
    module = _MODULE.format(examples=examples) if with_module else ""
    given = "encoder" if with_module else "None"
    return _PREPARE + _LOAD.format(package=package, adapter=adapter, module=module, given=given)


def build(name: str, folder: Path, threads: int) -> tuple[Path, Path]:
    """Build the model for one runtime and save it.

    Args:
        name: Name of the backend.
        folder: Empty folder.
        threads: Threads of one call.

    Returns:
        The model file of the runtime, and the artifact.
    """
    torch.set_num_threads(threads)
    encoder, tokenizer = demo.load(demo.weights_folder())
    calls = [
        Sample((), dict(tokenizer(demo.SENTENCES[:size], padding=True, return_tensors="pt"))) for size in BATCH_SIZES
    ]
    spec, data = record_graph(encoder, calls, list(BATCH_SIZES))
    folder.mkdir(parents=True)
    backend = registry.load(name)().build(encoder, spec, data, torch.device("cpu"), folder)
    state = {"name": "minilm", "graphs": [{"graph_spec": graph_spec_to_dict(spec), "backend": {}}]}
    artifact = folder.parent / f"{name}.ait"
    ait.save(ait.Module.from_dict(encoder, state, restore=lambda view, _: backend), artifact)
    model = next(path for path in folder.rglob("*") if path.suffix in (".onnx", ".xml"))
    return model, artifact


def with_its_weights(model: Path) -> Path:
    """Write a model with weights beside it as one ONNX file, and return that.

    Args:
        model: The model.
    """
    import onnx

    whole = model.parent.parent / "whole.onnx"
    onnx.save_model(onnx.load(str(model)), str(whole))
    return whole


def programs_of(backend: str, folder: Path, threads: int) -> dict[str, tuple[str, Path]]:
    """Build the model for one runtime, and return each program by name with the file that it opens.

    Args:
        backend: Name of the backend.
        folder: Empty folder.
        threads: Threads of one call.
    """
    model, artifact = build(backend, folder, threads)
    alone = _PREPARE + _SDK[backend]
    programs = {ALONE: (alone, model)}
    if backend == "ONNXRuntime":
        programs = {ALONE: (alone, with_its_weights(model)), "runtime alone, weights beside it": (alone, model)}
    programs["ait.load(None, ...)"] = (load_program(backend, with_module=False), artifact)
    programs["ait.load(module, ...)"] = (load_program(backend, with_module=True), artifact)
    return programs


def time_program(program: str, path: Path, threads: int) -> float:
    """Run a program in a fresh process.

    Args:
        program: Python that prints a number at the end.
        path: The file that it opens.
        threads: Threads of one call.

    Returns:
        The number, in seconds.
    """
    command = [sys.executable, "-c", program, str(path), str(threads)]
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}
    answer = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    if answer.returncode != 0:
        raise SystemExit(f"a measured process failed:\n{answer.stderr}")
    return float(answer.stdout.split()[-1])


def report(backend: str, seconds: dict[str, list[float]]) -> dict[str, Any]:
    """Print the medians of one backend, and return them with their ratios to the runtime alone.

    Args:
        backend: Name of the backend.
        seconds: Times by task.
    """
    alone = statistics.median(seconds[ALONE])
    print(f"\n{backend}: from the first call to the first answer, median (smallest to largest)")
    found: dict[str, Any] = {"backend": backend}
    for name, times in seconds.items():
        ratio = statistics.median([t / a for t, a in zip(times, seconds[ALONE], strict=True)])
        median = statistics.median(times)
        print(
            f"  {name:34} {median * 1000:7.1f} ms ({min(times) * 1000:.1f} to {max(times) * 1000:.1f})"
            f"   {median / alone:5.2f} x by medians, {ratio:5.2f} x by rounds"
        )
        found[name] = {"seconds": median, "ratio": median / alone}
    return found


def time_commands(artifact: Path, rounds: int) -> dict[str, float]:
    """Print and return how long the commands take as whole processes, in seconds by name.

    Args:
        artifact: The file.
        rounds: How often each is run.
    """
    print(f"\n{artifact.name}: {artifact.stat().st_size / 1e6:.0f} MB, whole processes, median")
    medians = {}
    for command in ("show", "verify"):
        times = []
        for _ in range(rounds):
            begin = time.perf_counter()
            program = f"from aitune.cli.main import app; app(['{command}', {str(artifact)!r}])"
            subprocess.run([sys.executable, "-c", program], check=True, stdout=subprocess.DEVNULL)
            times.append(time.perf_counter() - begin)
        medians[command] = statistics.median(times)
        print(f"  aitune {command:28} {medians[command] * 1000:7.1f} ms")
    return medians


def main() -> int:
    """Measure and print.

    Returns:
        0 when loading takes at most 1.3 times as long as the runtime alone, with the module and without it, and each
        command at most half a second; else 1.
    """
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7, help="rounds that count (default: %(default)s)")
    parser.add_argument("--threads", type=int, default=1, help="threads of one call (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the order (default: %(default)s)")
    parser.add_argument("--json", type=Path, help="file for the result")
    arguments = parser.parse_args()
    if arguments.rounds < 1 or arguments.threads < 1:
        parser.error("--rounds and --threads must be at least 1")
    results, commands = [], []
    with tempfile.TemporaryDirectory() as name:
        for backend in BACKENDS:
            programs = programs_of(backend, Path(name) / backend, arguments.threads)
            tasks = {
                task: functools.partial(time_program, program, path, arguments.threads)
                for task, (program, path) in programs.items()
            }
            _, artifact = programs["ait.load(None, ...)"]
            results.append(report(backend, in_turn(tasks, arguments.rounds, arguments.seed)))
        commands.append(time_commands(artifact, arguments.rounds))
    ratios = [found[name]["ratio"] for found in results for name in found if name.startswith("ait.load")]
    seconds = [each for medians in commands for each in medians.values()]
    shown = [
        _at_most("loading over the runtime alone, largest ratio", max(ratios), ALLOWED_RATIO, ""),
        _at_most("a command, longest time", max(seconds), ALLOWED_COMMAND_SECONDS, " s"),
    ]
    write_json(arguments.json, plain(arguments), [*results, *commands], shown)
    return print_requirements(shown)


def _at_most(what: str, value: float, allowed: float, unit: str) -> Requirement:
    return Requirement(what, f"{value:.2f}{unit}", f"at most {allowed:g}{unit}", value <= allowed)


if __name__ == "__main__":
    sys.exit(main())
