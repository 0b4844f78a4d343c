"""Tunes a module whose candidate never stops building (or whose dataset never ends), for a test that interrupts it.

Prints ``ready`` when it may be interrupted, and after Ctrl-C one line of JSON with what is left.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from tuning_models import HurryBackend, QuickStrategy, SleepyNet, plain_answer, samples

import aitune.torch as ait
from aitune.testing.fakes import FakeBackend
from aitune.torch.config import config
from aitune.torch.tune_strategy.cost_history import FILE_NAME


class Endless(FakeBackend):
    def _build(self, *args: Any) -> Any:
        Path(args[-1], "half-written.bin").write_bytes(b"half")
        wait()


class Hanging(FakeBackend):
    """Right when it is checked; when it is measured a call takes for ever."""

    def _infer(self, *args: Any, **kwargs: Any) -> Any:
        if args[0].shape[0] == 8 and "measure" in stages:
            wait()
        return super()._infer(*args, **kwargs)


stages: list[str] = []


class Stages:
    def on_event(self, event: Any) -> None:
        if getattr(event, "candidate", "").startswith("Fake"):
            stages.append(event.stage)


def wait() -> None:
    print("ready", flush=True)
    while True:
        time.sleep(0.01)


def endless_dataset(batch_size: int) -> Iterator[torch.Tensor]:
    yield torch.ones(batch_size, 4)
    wait()


def run(where: str, folder: Path) -> dict[str, Any]:
    config.cache_dir = folder
    tuned, fresh = ait.Module(SleepyNet().eval(), "tuned"), ait.Module(SleepyNet().eval(), "fresh")
    ait.tune(tuned, samples(), batch_sizes=[1, 8], strategy=QuickStrategy([HurryBackend()]))

    def both(x: torch.Tensor) -> None:
        tuned(x)
        fresh(x)

    interrupted = False
    data: Callable[[int], Iterator[torch.Tensor]] | Any = endless_dataset if where == "recording" else samples()
    backend = Hanging("hanging") if where == "measuring" else Endless("endless")
    try:
        ait.tune(
            both, data, batch_sizes=[1, 8], strategy=QuickStrategy([backend]), retune=True,
            listeners=[Stages()],
        )  # fmt: skip
    except KeyboardInterrupt:
        interrupted = True
    x = torch.ones(3, 4)
    with torch.no_grad():
        right = [torch.equal(model(x)["y"], plain_answer(model.original, x)["y"]) for model in (tuned, fresh)]
    return {
        "interrupted": interrupted,
        "right": right,
        "states": [tuned.state.value, fresh.state.value],
        "served": tuned.stats().served,
        "files": [str(path) for path in folder.rglob("*") if path.is_file() and path.name != FILE_NAME],
    }


if __name__ == "__main__":
    print(json.dumps(run(sys.argv[1], Path(sys.argv[2]))), flush=True)
