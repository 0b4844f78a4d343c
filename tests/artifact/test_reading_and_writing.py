from __future__ import annotations

import os
import zipfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_artifacts import backend, manifest, write_artifact

from aitune.artifact import reading, writing
from aitune.artifact.manifest import FileRecord, PartRecord
from aitune.artifact.reading import Artifact
from aitune.artifact.writing import ArtifactWriter, Range
from aitune.exceptions import ArtifactError

LARGE = bytes(range(256)) * 1000


def extracted(artifact: Artifact, folder: Path) -> dict[str, bytes]:
    folder.mkdir()
    artifact.extract(artifact.manifest.modules[0].graphs[0].backends[0].files, folder)
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@given(st.lists(st.binary(max_size=3000), max_size=5))
@settings(max_examples=30, deadline=None)
def test_what_is_written_is_read(tmp_path_factory: pytest.TempPathFactory, contents: list[bytes]) -> None:
    folder = tmp_path_factory.mktemp("artifact")
    with Artifact(write_artifact(folder / "x.ait", *contents)) as artifact:
        artifact.verify()
        assert extracted(artifact, folder / "out") == {f"build/{n}": content for n, content in enumerate(contents)}


def test_equal_bytes_are_stored_once(tmp_path: Path) -> None:
    path = write_artifact(tmp_path / "x.ait", LARGE, b"other", LARGE)
    with Artifact(path) as artifact:
        assert [member.size for member in artifact.manifest.members] == [len(LARGE), 5]
        assert extracted(artifact, tmp_path / "out")["build/2"] == LARGE
    assert path.stat().st_size < 1.5 * len(LARGE)


def test_files_made_of_parts_of_members(tmp_path: Path) -> None:
    (tmp_path / "source").write_bytes(LARGE)
    writer = ArtifactWriter()
    member = writer.add_member(tmp_path / "source")
    cut = writer.add_member(tmp_path / "source", [Range(5, 10), Range(100, 20)])
    assert cut.size == 30
    parts = (
        PartRecord(member=cut.sha256, offset=0, size=30),
        PartRecord(member=member.sha256, offset=7, size=70_000),
        PartRecord(member=member.sha256, offset=0, size=3),
    )
    whole = FileRecord(path="whole", parts=(PartRecord(member=member.sha256, offset=0, size=member.size),))
    made = manifest(writer, backend((FileRecord(path="a/b", parts=parts), whole)))
    with (tmp_path / "x.ait").open("wb") as stream:
        writer.write(stream, made)
    with Artifact(tmp_path / "x.ait") as artifact:
        found = extracted(artifact, tmp_path / "out")
    assert found == {"a/b": LARGE[5:15] + LARGE[100:120] + LARGE[7:70_007] + LARGE[:3], "whole": LARGE}


def flip(path: Path, position: int) -> None:
    content = bytearray(path.read_bytes())
    content[position] ^= 0x10
    path.write_bytes(content)


def offset_of(path: Path, content: bytes) -> int:
    return path.read_bytes().index(content)


def test_a_damaged_member_is_found_by_verify_and_before_use(tmp_path: Path) -> None:
    path = write_artifact(tmp_path / "x.ait", LARGE, b"intact" * 100)
    flip(path, offset_of(path, LARGE) + 1000)
    with Artifact(path) as artifact:
        files = artifact.manifest.modules[0].graphs[0].backends[0].files
        artifact.verify(files[1:])
        with pytest.raises(ArtifactError, match="is damaged: member"):
            artifact.verify()
        (tmp_path / "out").mkdir()
        with pytest.raises(ArtifactError, match="is damaged: member"):
            artifact.extract(files, tmp_path / "out")


def test_every_changed_byte_of_a_file_is_found(tmp_path: Path) -> None:
    path = write_artifact(tmp_path / "x.ait", b"one member", b"another")
    content = path.read_bytes()
    with path.open("r+b", buffering=0) as file:
        for position, byte in enumerate(content):
            os.pwrite(file.fileno(), bytes([byte ^ 1 << position % 8]), position)
            with pytest.raises(ArtifactError), Artifact(path) as artifact:
                artifact.verify()
            os.pwrite(file.fileno(), bytes([byte]), position)
    Artifact(path).close()


def repacked(path: Path, change: Any) -> Path:
    with zipfile.ZipFile(path) as file:
        entries = {name: file.read(name) for name in file.namelist()}
    change(entries)
    with zipfile.ZipFile(path, "w") as file:
        for name, content in entries.items():
            file.writestr(name, content)
    return path


def test_what_another_program_packed_is_refused(tmp_path: Path) -> None:
    path = repacked(write_artifact(tmp_path / "x.ait", b"member"), lambda entries: None)
    with pytest.raises(ArtifactError, match="damaged, or was packed again by another program"):
        Artifact(path)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda path: path.mkdir(), "is a folder"),
        (lambda path: None, "does not exist"),
        (os.mkfifo, "is a device or a pipe"),
        (lambda path: path.write_bytes(b""), "it is empty"),
        (lambda path: path.write_bytes(b"PK"), "less than the smallest zip"),
        (lambda path: path.write_bytes(b"#!/bin/sh\n" * 10), "is not a zip"),
        (lambda path: zipfile.ZipFile(path, "w").writestr("a", "b"), "damaged|no artifact"),
    ],
)
def test_what_is_no_artifact_is_refused_with_its_name(tmp_path: Path, make: Any, message: str) -> None:
    path = tmp_path / "x.ait"
    make(path)
    with pytest.raises(ArtifactError, match=message) as raised:
        Artifact(path)
    assert str(path) in str(raised.value)


def test_a_zip_without_a_manifest_is_no_artifact(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "x.zip", "w") as file:
        file.writestr("a", "b")
    with pytest.raises(ArtifactError, match=r"is a zip, but no artifact of aitune: it has no manifest\.json"):
        Artifact(tmp_path / "x.zip")


def test_a_file_that_may_not_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_artifact(tmp_path / "x.ait", b"member")

    def refuse(*args: Any, **kwargs: Any) -> int:
        raise PermissionError(13, "Permission denied", str(path))

    # The superuser, whom tests may run as, is never refused.
    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(ArtifactError, match="cannot be read: Permission denied"):
        Artifact(path)


def test_extraction_to_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*args: Any) -> str:
        raise OSError(28, "No space left on device")

    with Artifact(write_artifact(tmp_path / "x.ait", LARGE)) as artifact:
        monkeypatch.setattr(reading, "copy_range", full)
        with pytest.raises(ArtifactError, match=r"No space left on device.*need 256000 bytes"):
            extracted(artifact, tmp_path / "out")


def test_a_source_that_vanishes_or_changes(tmp_path: Path) -> None:
    source = tmp_path / "model"
    writer = ArtifactWriter()
    with pytest.raises(ArtifactError, match="was the cache cleared"):
        writer.add_file(source, "model")
    source.write_bytes(b"as it was")
    file = writer.add_file(source, "model")
    source.write_bytes(b"as it is!")
    with (tmp_path / "x.ait").open("wb") as stream, pytest.raises(ArtifactError, match="changed while it was being"):
        writer.write(stream, manifest(writer, backend((file,))))


def test_a_path_that_cannot_be_stored(tmp_path: Path) -> None:
    (tmp_path / "model").write_bytes(b"x")
    with pytest.raises(ArtifactError, match="cannot be stored"):
        ArtifactWriter().add_file(tmp_path / "model", "a b")


def test_large_files_are_stored_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writing, "LARGEST_MEMBER", 100_000)
    (tmp_path / "model").write_bytes(LARGE + b"end")
    writer = ArtifactWriter()
    file = writer.add_file(tmp_path / "model", "build/model")
    assert [part.size for part in file.parts] == [100_000, 100_000, 56_003]
    with (tmp_path / "x.ait").open("wb") as stream:
        writer.write(stream, manifest(writer, backend((file,))))
    with Artifact(tmp_path / "x.ait") as artifact:
        assert extracted(artifact, tmp_path / "out") == {"build/model": LARGE + b"end"}


def test_an_empty_file(tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    writer = ArtifactWriter()
    file = writer.add_file(tmp_path / "empty", "build/empty")
    with (tmp_path / "x.ait").open("wb") as stream:
        writer.write(stream, manifest(writer, backend((file,))))
    with Artifact(tmp_path / "x.ait") as artifact:
        assert extracted(artifact, tmp_path / "out") == {"build/empty": b""}
