import gc
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from aitune.utils.process_folder import ProcessFolder

HOLDER = """
import sys, time, pathlib
from aitune.utils.process_folder import ProcessFolder
folder = ProcessFolder(pathlib.Path(sys.argv[1]), "used-")
(folder.path / "big.bin").write_bytes(b"big")
print(folder.path, flush=True)
time.sleep(60)
"""


@contextmanager
def another_process(parent: Path) -> Iterator[tuple["subprocess.Popen[str]", Path]]:
    process = subprocess.Popen([sys.executable, "-c", HOLDER, str(parent)], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield process, Path(process.stdout.readline().strip())
    finally:
        process.kill()
        process.communicate()


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_what_a_killed_process_left_is_removed_by_the_next(tmp_path: Path, how: signal.Signals) -> None:
    with another_process(tmp_path) as (process, left):
        process.send_signal(how)
        process.wait()
        assert left.exists()
        kept = ProcessFolder(tmp_path, "used-")
        assert [kept.path.parent] == list(tmp_path.iterdir())


def test_what_a_living_process_uses_stays(tmp_path: Path) -> None:
    with another_process(tmp_path) as (_, used):
        mine, other = ProcessFolder(tmp_path, "used-"), ProcessFolder(tmp_path, "used-")
        assert (used / "big.bin").exists()
        assert mine.path.exists()
        assert other.path != mine.path


def test_folders_of_others_stay(tmp_path: Path) -> None:
    for name in ("used-by-hand", "other-1"):
        (tmp_path / name).mkdir()
    ProcessFolder(tmp_path, "used-").remove()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["other-1", "used-by-hand"]


def test_it_goes_with_the_object_and_can_be_removed_twice(tmp_path: Path) -> None:
    folder = ProcessFolder(tmp_path / "made" / "on the way", "used-")
    path = folder.path
    assert os.listdir(path) == []
    del folder
    gc.collect()
    assert not path.parent.exists()
    again = ProcessFolder(tmp_path, "used-")
    again.remove()
    again.remove()
    assert not again.path.exists()


def test_a_place_that_cannot_be_used_is_an_error_and_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match="file"):
        ProcessFolder(tmp_path / "file", "used-")
