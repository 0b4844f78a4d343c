from __future__ import annotations

import os
import random
import resource
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any, BinaryIO

import pytest
from small_artifacts import write_artifact

from aitune.artifact.reading import Artifact
from aitune.artifact.storage import FsspecStorage, LocalTorchStorage, storage_for
from aitune.exceptions import AITuneUserInputError, ArtifactError

KILLS = 30


def write(content: bytes) -> Any:
    return lambda stream: stream.write(content)


def left_beside(path: Path) -> list[str]:
    return [other.name for other in path.parent.iterdir() if other != path]


def test_a_file_is_written_and_replaced(tmp_path: Path) -> None:
    storage = LocalTorchStorage(tmp_path)
    storage.store("x.ait", write(b"old"))
    storage.store("x.ait", write(b"new"))
    with storage.fetch("x.ait") as path:
        assert path.read_bytes() == b"new"
    assert left_beside(tmp_path / "x.ait") == []


def test_a_new_file_has_the_usual_mode_and_an_old_one_keeps_its_own(tmp_path: Path) -> None:
    path, usual = tmp_path / "x.ait", tmp_path / "usual"
    usual.write_bytes(b"")
    LocalTorchStorage().store(str(path), write(b"x"))
    assert path.stat().st_mode == usual.stat().st_mode
    path.chmod(0o640)
    LocalTorchStorage().store(str(path), write(b"y"))
    assert path.stat().st_mode & 0o777 == 0o640


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    (tmp_path / "real.ait").write_bytes(b"old")
    (tmp_path / "link.ait").symlink_to(tmp_path / "real.ait")
    LocalTorchStorage().store(str(tmp_path / "link.ait"), write(b"new"))
    assert (tmp_path / "link.ait").is_symlink()
    assert (tmp_path / "real.ait").read_bytes() == b"new"


def test_an_error_while_writing_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "x.ait"
    path.write_bytes(b"old")

    def fail(stream: BinaryIO) -> None:
        stream.write(b"half")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        LocalTorchStorage().store(str(path), fail)
    assert path.read_bytes() == b"old"
    assert left_beside(path) == []


def test_the_folder_is_a_file_or_missing(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(ArtifactError, match="is a folder, expected the path of a file"):
        LocalTorchStorage().store(str(tmp_path), write(b"x"))
    with pytest.raises(ArtifactError, match="its folder does not exist; make it first"):
        LocalTorchStorage().store(str(tmp_path / "missing" / "x.ait"), write(b"x"))
    with pytest.raises(ArtifactError, match="its folder is a file"):
        LocalTorchStorage().store(str(tmp_path / "file" / "x.ait"), write(b"x"))


def test_what_is_no_file_stays_what_it_is(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("pipe")
    for name in ("pipe", "link"):
        with pytest.raises(ArtifactError, match="is neither a file nor a folder"):
            LocalTorchStorage(tmp_path).store(name, write(b"x"))
    with pytest.raises(ArtifactError, match="new/ is a folder"):
        LocalTorchStorage(tmp_path).store("new/", write(b"x"))
    assert (tmp_path / "pipe").is_fifo()
    assert sorted(left_beside(tmp_path / "pipe")) == ["link"]


@pytest.mark.parametrize("letter", ["x", "ü", "数"])
def test_the_longest_name_of_a_file(tmp_path: Path, letter: str) -> None:
    longest = letter * (os.pathconf(tmp_path, "PC_NAME_MAX") // len(os.fsencode(letter)))
    LocalTorchStorage(tmp_path).store(longest, write(b"old"))
    left = tmp_path / f".{longest[:50]}.0123456789ab.part"
    left.write_bytes(b"half")
    os.utime(left, (time.time() - 3600,) * 2)
    LocalTorchStorage(tmp_path).store(longest, write(b"new"))
    assert (tmp_path / longest).read_bytes() == b"new"
    assert left_beside(tmp_path / longest) == []
    with pytest.raises(ArtifactError, match="its name is too long"):
        LocalTorchStorage(tmp_path).store(longest + letter, write(b"x"))


@pytest.mark.skipif(not Path("/sys").is_dir(), reason="needs a folder that nobody may write to")
def test_no_permission() -> None:
    with pytest.raises(ArtifactError, match=r"permission denied|read-only"):
        LocalTorchStorage().store("/sys/x.ait", write(b"x"))


@pytest.mark.parametrize(("number", "message"), [(28, "no space is left"), (122, "quota"), (5, "Input/output error")])
def test_a_full_or_broken_disk(tmp_path: Path, number: int, message: str) -> None:
    (tmp_path / "x.ait").write_bytes(b"old")

    def fail(stream: BinaryIO) -> None:
        raise OSError(number, os.strerror(number))

    with pytest.raises(ArtifactError, match=message):
        LocalTorchStorage(tmp_path).store("x.ait", fail)
    assert (tmp_path / "x.ait").read_bytes() == b"old"
    assert left_beside(tmp_path / "x.ait") == []


def test_no_space_for_real(tmp_path: Path) -> None:
    path = tmp_path / "x.ait"
    path.write_bytes(b"old")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, limits[1]))
    try:
        with pytest.raises(ArtifactError, match="files of this size are not allowed there"):
            LocalTorchStorage().store(str(path), write(bytes(1_000_000)))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert path.read_bytes() == b"old"
    assert left_beside(path) == []


def test_what_a_killed_process_left_is_removed_and_what_another_writes_is_not(tmp_path: Path) -> None:
    path, left = tmp_path / "x[1].ait", tmp_path / ".x[1].ait.0123456789ab.part"
    left.write_bytes(b"half")
    LocalTorchStorage().store(str(path), write(b"one"))
    assert left.exists()
    os.utime(left, (time.time() - 3600,) * 2)
    LocalTorchStorage().store(str(path), write(b"two"))
    assert left_beside(path) == []

    def slowly(stream: BinaryIO) -> None:
        os.utime(next(tmp_path.glob(".*.part")), (time.time() - 3600,) * 2)
        LocalTorchStorage().store(str(path), write(b"between"))
        stream.write(b"three")

    LocalTorchStorage().store(str(path), slowly)
    assert path.read_bytes() == b"three"


def test_many_writers_at_once(tmp_path: Path) -> None:
    contents = [bytes([number]) * 200_000 for number in range(8)]
    threads = [
        threading.Thread(target=LocalTorchStorage(tmp_path).store, args=("x.ait", write(content)))
        for content in contents
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (tmp_path / "x.ait").read_bytes() in contents
    assert left_beside(tmp_path / "x.ait") == []


@pytest.mark.slow
def test_a_killed_writer_leaves_the_old_file_or_the_new_one(tmp_path: Path) -> None:
    path = write_artifact(tmp_path / "x.ait", b"the first one")
    run = Path(__file__).with_name("writing_run.py")
    rng = random.Random(0)
    seen = set()
    for _ in range(KILLS):
        child = subprocess.Popen(
            [sys.executable, str(run), str(path)],
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": os.pathsep.join([str(run.parent), os.environ.get("PYTHONPATH", "")])},
        )
        assert child.stdout is not None
        assert child.stdout.readline() == b"writing\n"
        time.sleep(rng.uniform(0.0, 0.15))
        child.send_signal(signal.SIGKILL)
        child.wait()
        child.stdout.close()
        with Artifact(path) as artifact:
            artifact.verify()
            seen.add(artifact.manifest.members[0].sha256)
    assert len(seen) > 2
    for left in tmp_path.glob(".*.part"):
        os.utime(left, (time.time() - 3600,) * 2)
    LocalTorchStorage().store(str(path), write(b"x"))
    assert left_beside(path) == []


def test_any_place_of_fsspec(tmp_path: Path) -> None:
    fsspec = pytest.importorskip("fsspec")
    storage = FsspecStorage("memory://models")
    storage.store("deep/x.ait", write(b"old"))
    storage.store("deep/x.ait", write(b"new"))
    with storage.fetch("deep/x.ait") as path:
        assert path.read_bytes() == b"new"
        kept = path
    assert not kept.exists()
    assert [name.rsplit("/", 1)[-1] for name in fsspec.filesystem("memory").find("/models")] == ["x.ait"]
    with storage_for("memory://models/deep/x.ait").fetch("memory://models/deep/x.ait") as path:
        assert path.read_bytes() == b"new"
    with pytest.raises(ArtifactError, match="cannot be read"), storage.fetch("missing.ait"):
        pass


@pytest.mark.parametrize(
    ("error", "seen"),
    [
        (OSError("the connection was lost"), ArtifactError),
        (RuntimeError("the connection was lost"), RuntimeError),
        (KeyboardInterrupt("the connection was lost"), KeyboardInterrupt),
    ],
)
def test_an_upload_that_fails_leaves_the_old_file(
    monkeypatch: pytest.MonkeyPatch, error: BaseException, seen: type[BaseException]
) -> None:
    fsspec = pytest.importorskip("fsspec")
    storage = FsspecStorage("memory://failing")
    storage.store("x.ait", write(b"old"))
    system = fsspec.filesystem("memory")

    def half(local: str, target: str, **kwargs: Any) -> None:
        system.pipe_file(target, b"half")
        raise error

    monkeypatch.setattr(type(system), "put_file", lambda self, *args, **kwargs: half(*args, **kwargs))
    with pytest.raises(seen, match="the connection was lost"):
        storage.store("x.ait", write(b"new"))
    assert system.cat("/failing/x.ait") == b"old"
    assert len(system.find("/failing")) == 1


def test_an_address_that_nobody_knows() -> None:
    pytest.importorskip("fsspec")
    with pytest.raises(AITuneUserInputError, match="fsspec cannot reach"):
        FsspecStorage().store("nosuchthing://x", write(b"x"))


def test_which_storage_a_path_asks_for(tmp_path: Path) -> None:
    assert isinstance(storage_for("s3://bucket/x"), FsspecStorage)
    assert isinstance(storage_for("folder/x.ait"), LocalTorchStorage)
    assert isinstance(storage_for(tmp_path), LocalTorchStorage)
