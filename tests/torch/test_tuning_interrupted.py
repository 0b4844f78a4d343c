from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

import aitune.torch as ait
from aitune.torch.config import config

PROGRAM = Path(__file__).with_name("interrupted_run.py")
LONGEST_ANSWER_SECONDS = 10.0


@pytest.mark.parametrize("where", ["recording", "building", "measuring"])
def test_ctrl_c_ends_the_call_and_leaves_every_module_as_it_was(where: str, tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, str(PROGRAM), where, str(tmp_path)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    try:
        assert process.stdout.readline().strip() == "ready"
        process.send_signal(signal.SIGINT)
        began = time.monotonic()
        output, errors = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 0, errors
    assert time.monotonic() - began < LONGEST_ANSWER_SECONDS
    result = json.loads(output.splitlines()[-1])
    assert result == {
        "interrupted": True,
        "right": [True, True],
        "states": ["tuned", "init"],
        "served": {"graph0": 1},
        "files": [],
    }


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_samples_that_a_killed_process_left_are_removed_by_the_next_run(how: signal.Signals, tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, str(PROGRAM), "recording", str(tmp_path)], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        text=True,
    )  # fmt: skip
    assert process.stdout is not None
    try:
        assert process.stdout.readline().strip() == "ready"
        process.send_signal(how)
        process.communicate(timeout=60)
    finally:
        process.kill()
    left = set((tmp_path / "samples").iterdir())
    assert left
    with config.override(cache_dir=tmp_path):
        model = ait.Module(torch.nn.Linear(4, 4).eval(), "next")
        model.enable_recording()
        model(torch.ones(1, 4))
        assert len(set((tmp_path / "samples").iterdir()) - left) == 1
        assert not any(folder.exists() for folder in left)
        model.unwrap()
    assert list((tmp_path / "samples").iterdir()) == []
