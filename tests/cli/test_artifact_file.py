"""``aitune show`` and ``aitune verify``."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from small_artifacts import backend, manifest
from typer.testing import CliRunner

from aitune.artifact.writing import ArtifactWriter
from aitune.cli.main import app

runner = CliRunner()
GOLDEN = Path(__file__).resolve().parents[1] / "artifact" / "data" / "golden_v1.ait"
SECRET = bytes(range(32))


def test_show_says_what_is_inside_and_how_it_won() -> None:
    result = runner.invoke(app, ["show", str(GOLDEN)])
    assert result.exit_code == 0, result.output
    for said in (
        "format 1", "says that the key", "Module 'encoder' (aitune.testing.tiny_models.TinyEncoder)",
        "with the original weights", "batch0 2..3", "serves: ONNXRuntime (1 files", "alternative: OpenVINO (2 files",
        "chosen by MaxThroughputStrategy: faster than the original",
        "ONNXRuntime against the original: 2.000x [1.900, 2.100] at 99.5%, faster",
        "relative error 1.0e-07 over 1 calls", "batch 2: 1.000 ms", "torch 2.",
    ):  # fmt: skip
        assert said in result.output


def test_what_a_file_says_cannot_steer_the_terminal(tmp_path: Path) -> None:
    writer, path = ArtifactWriter(), tmp_path / "x.ait"
    said = "one\x1b[2J\r\ntwo\x9b\u202e\N{LATIN SMALL LETTER E WITH ACUTE}"
    with path.open("wb") as stream:
        writer.write(stream, manifest(writer, backend(description=said), created=said))
    result = runner.invoke(app, ["show", str(path)])
    assert result.exit_code == 0
    assert result.output.count(r"one\x1b[2J\r\ntwo\x9b\u202e" + "\N{LATIN SMALL LETTER E WITH ACUTE}") == 2
    assert all(line.isprintable() for line in result.output.split("\n"))
    result = runner.invoke(app, ["show", "--json", str(path)])
    assert all(line.isprintable() for line in result.output.split("\n"))
    assert json.loads(result.output)["created"] == said


def test_show_for_programs() -> None:
    result = runner.invoke(app, ["show", "--json", str(GOLDEN)])
    manifest = json.loads(result.output)
    assert manifest["version"] == 1
    assert manifest["modules"][0]["name"] == "encoder"


def test_verify_says_that_a_file_is_whole_or_not(tmp_path: Path) -> None:
    result = runner.invoke(app, ["verify", str(GOLDEN)])
    assert result.exit_code == 0
    assert "is whole: 4 members" in result.output
    damaged = tmp_path / "x.ait"
    content = bytearray(GOLDEN.read_bytes())
    content[300] ^= 1
    damaged.write_bytes(content)
    result = runner.invoke(app, ["verify", str(damaged)])
    assert result.exit_code == 1
    assert "is damaged: member" in result.output
    assert runner.invoke(app, ["show", str(damaged)]).exit_code == 0


def test_verify_with_a_key(tmp_path: Path) -> None:
    ed25519 = pytest.importorskip("cryptography.hazmat.primitives.asymmetric.ed25519")
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    for secret, code in ((SECRET, 0), (bytes(32), 1)):
        public = ed25519.Ed25519PrivateKey.from_private_bytes(secret).public_key()
        (tmp_path / "key.pem").write_bytes(public.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))
        result = runner.invoke(app, ["verify", str(GOLDEN), "--key", str(tmp_path / "key.pem")])
        assert result.exit_code == code
        assert ("signed with the key" in result.output) == (code == 0) or "is not signed with the key" in result.output


@pytest.mark.parametrize("command", ["show", "verify"])
def test_what_is_no_artifact_is_said_without_a_traceback(command: str, tmp_path: Path) -> None:
    (tmp_path / "text").write_text("hello" * 10)
    for path, message in (
        (tmp_path, "is a folder"),
        (tmp_path / "no", "does not exist"),
        (tmp_path / "text", "no zip"),
    ):
        result = runner.invoke(app, [command, str(path)])
        assert result.exit_code == 1
        assert message.replace("no zip", "is not a zip") in result.output
        assert "Traceback" not in result.output


@pytest.mark.parametrize("command", ["show", "verify"])
def test_neither_needs_torch(command: str, tmp_path: Path) -> None:
    shutil.copy(GOLDEN, tmp_path / "x.ait")
    # As on a machine where torch is not installed.
    (tmp_path / "torch.py").write_text("raise ImportError('torch was imported')")
    code = (
        f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n"
        f"from aitune.cli.main import app\n"
        f"try: app([{command!r}, {str(tmp_path / 'x.ait')!r}])\n"
        f"finally: print([name for name in ('torch', 'numpy', 'onnxruntime') if name in sys.modules])"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    assert result.stdout.splitlines()[-1] == "[]"
