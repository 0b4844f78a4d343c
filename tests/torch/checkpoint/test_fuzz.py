"""A file that was changed in any way gives an error; it writes nothing, runs nothing, and never answers wrong."""

from __future__ import annotations

import gc
import os
import random
import resource
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from fuzzing import MUTATIONS, entries_of
from tuned_parts import StoredEncoder, answers, tensors_of

import aitune.torch as ait
from aitune.exceptions import AITuneError, AITuneUserInputError
from aitune.testing.tiny_models import tiny_encoder_call

MUTATIONS_IN_ALL = 2000
MEMORY_ALLOWED = 400 << 20
SAMPLE = tiny_encoder_call(2, 5, seed=1)
RUNS_SOMETHING = ("os.system", "os.exec", "os.posix_spawn", "os.fork", "subprocess.Popen", "pickle.find_class")


class Watch:
    """Takes note, while it is switched on, of what a process starts, and of what it writes outside a folder."""

    def __init__(self) -> None:
        self.folder: str | None = None
        self.seen: list[str] = []
        sys.addaudithook(self._on_event)

    def _on_event(self, event: str, arguments: tuple[Any, ...]) -> None:
        if self.folder is None:
            return
        if event in RUNS_SOMETHING:
            self.seen.append(f"{event} {arguments}")
        if event == "open" and isinstance(arguments[0], str | bytes):
            writes = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
            path = os.path.abspath(os.fsdecode(arguments[0]))
            # The interpreter writes its own compiled files when something is imported for the first time.
            if arguments[2] & writes and not path.startswith(self.folder) and "__pycache__" not in path:
                self.seen.append(f"wrote {path}")


# A hook stays for as long as the process lives: there is one, and it is silent when it is not asked.
WATCH = Watch()


@pytest.fixture
def watched(tmp_path: Path) -> Iterator[Watch]:
    WATCH.folder, WATCH.seen = str(tmp_path), []
    yield WATCH
    WATCH.folder = None


def test_the_watch_sees(watched: Watch, tmp_path: Path) -> None:
    (tmp_path / "inside").write_text("x")
    assert watched.seen == []
    with open(os.devnull, "w") as file:
        file.write("x")
    os.system("true")
    assert [line.split()[0] for line in watched.seen] == ["wrote", "os.system"]


def overwrite(path: Path, content: bytes) -> None:
    # Not write_bytes: a file that is emptied and written anew goes to the disk at once on some file systems.
    with path.open("r+b") as file:
        file.write(content)
        file.truncate()


def outcome_of(path: Path, wanted: list[torch.Tensor], original: torch.nn.Module | None) -> str:
    try:
        loaded = ait.load(original, path)
    except AITuneError as error:
        return "refused" if str(path) in str(error) else f"refused without its name: {error}"
    try:
        got = tensors_of(answers(loaded, [SAMPLE])[0])
    except AITuneUserInputError:
        # The bounds were changed, and the call is outside now.
        return "call refused"
    finally:
        loaded.unwrap()
    assert len(got) == len(wanted)
    assert all(map(torch.equal, got, wanted))
    return "same answers"


@pytest.mark.slow
def test_two_thousand_changed_files(tmp_path: Path, watched: Watch, onnx_encoder: StoredEncoder) -> None:
    tuned = onnx_encoder.tuned(tmp_path / "builds")
    wanted = tensors_of(answers(tuned, [SAMPLE])[0])
    path = tmp_path / "encoder.ait"
    ait.save(tuned, path)
    # Its name is free then, which costs a search for garbage otherwise.
    tuned.unwrap()
    content, entries = path.read_bytes(), entries_of(path)
    assert outcome_of(path, wanted, None) == "same answers"
    cache = ait.config.resolve_cache_dir()
    before = {p: p.stat().st_size for p in tmp_path.rglob("*") if cache not in p.parents}
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    seen: Counter[tuple[str, str]] = Counter()
    for number in range(MUTATIONS_IN_ALL):
        rng = random.Random(number)
        mutate = MUTATIONS[number % len(MUTATIONS)]
        changed = mutate(content, entries, rng)
        if changed == content:
            continue
        overwrite(path, changed)
        seen[mutate.__name__, outcome_of(path, wanted, None)] += 1
    overwrite(path, content)
    assert watched.seen == []
    assert {p: p.stat().st_size for p in tmp_path.rglob("*") if cache not in p.parents} == before
    gc.collect()
    assert not list(cache.rglob("files"))
    assert (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - memory) * 1024 < MEMORY_ALLOWED
    # What is done to bytes and entries never passes; a manifest that was changed and sealed again sometimes may.
    assert {what for kind, what in seen if kind != "change_manifest"} == {"refused"}
    assert sum(seen.values()) > 0.98 * MUTATIONS_IN_ALL
    assert seen["change_manifest", "refused"] > 300
    assert sum(count for (_, what), count in seen.items() if what == "same answers") > 10
