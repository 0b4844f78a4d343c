import json
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

import aitune
from aitune.cli import doctor
from aitune.cli.main import app
from aitune.torch.backend.registry import BackendEntry, BackendRegistry, override_registry

runner = CliRunner()


@pytest.fixture(autouse=True)
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("AITUNE_CACHE_DIR", str(tmp_path))
    return tmp_path


@pytest.fixture
def two_backends():
    entries = (
        BackendEntry("Here", "aitune.torch.backend.torch_eager:TorchEagerBackend"),
        BackendEntry("Absent", "nowhere:Absent", required_packages=("no_such_package",), extra="absent"),
    )
    with override_registry(BackendRegistry(entries)):
        yield


def test_the_version_needs_no_torch() -> None:
    code = (
        "import sys; from aitune.cli.main import app\ntry: app(['--version'])\nfinally: print('torch' in sys.modules)"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.split() == ["aitune", aitune.__version__, "False"]


def test_without_a_command_help_is_shown() -> None:
    assert "doctor" in runner.invoke(app, []).output


@pytest.mark.usefixtures("two_backends")
def test_doctor_says_which_backends_run_and_how_to_get_the_others(cache: Path) -> None:
    (cache / "file").write_bytes(b"x" * 2048)
    result = runner.invoke(app, ["doctor"])
    assert result.exit_code == 0
    lines = [" ".join(line.split()) for line in result.output.splitlines()]
    assert "Here available" in lines
    assert 'Absent left out: no_such_package not installed; run: pip install "aitune-open[absent]"' in lines
    assert f"cache {cache} (2.0 KiB, writable)" in lines
    for name in ("Python", "torch", "processor", "cores", "C++ compiler"):
        assert any(line.startswith(name) for line in lines)


@pytest.mark.usefixtures("two_backends")
def test_doctor_for_programs(cache: Path) -> None:
    result = runner.invoke(app, ["doctor", "--json"])
    assert result.exit_code == 0
    findings = json.loads(result.output)
    assert [(b["name"], b["available"]) for b in findings["backends"]] == [("Here", True), ("Absent", False)]
    assert findings["backends"][0]["reason"] is None
    assert findings["cache"] == {"path": str(cache), "exists": True, "writable": True, "size_bytes": 0}
    assert findings["environment"]["python"] == sys.version.split()[0].rstrip("+")
    assert findings["device"] == "cpu"


@pytest.mark.usefixtures("two_backends")
def test_doctor_asks_about_another_device() -> None:
    entries = (BackendEntry("CpuOnly", "nowhere:CpuOnly", device_types=("cpu",)),)
    with override_registry(BackendRegistry(entries)):
        result = runner.invoke(app, ["doctor", "--device", "cuda:0"])
    assert result.exit_code == 0
    assert "left out: runs on cpu, not on cuda" in result.output


def test_on_a_device_that_this_machine_lacks_nothing_is_available() -> None:
    entries = (BackendEntry("Anywhere", "nowhere:Anywhere", device_types=("cpu", "ipu")),)
    with override_registry(BackendRegistry(entries)):
        assert "left out: ipu cannot be used here: " in runner.invoke(app, ["doctor", "--device", "ipu"]).output
        assert "Anywhere  available" in runner.invoke(app, ["doctor"]).output


def test_an_unknown_device_is_an_error_of_the_command_line() -> None:
    result = runner.invoke(app, ["doctor", "--device", "abacus"])
    assert result.exit_code == 2
    assert "abacus" in result.output


def test_doctor_names_every_backend_of_the_real_registry() -> None:
    result = runner.invoke(app, ["doctor"])
    for name in ("TorchEager", "ONNXRuntime", "OpenVINO", "TorchInductorJit", "TorchInductorAot"):
        assert name in result.output


def test_a_missing_compiler_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    result = runner.invoke(app, ["doctor"])
    assert result.exit_code == 0
    lines = [" ".join(line.split()) for line in result.output.splitlines()]
    assert "C++ compiler NOT found: torch Inductor cannot build for a CPU" in lines
    assert any(line.startswith("TorchInductorAot left out: no C++ compiler found") for line in lines)
    assert "TorchEager available" in lines


def test_a_cache_that_cannot_be_written_is_said(monkeypatch: pytest.MonkeyPatch, cache: Path) -> None:
    (cache / "file").write_text("in the way")
    monkeypatch.setenv("AITUNE_CACHE_DIR", str(cache / "file"))
    assert "NOT writable: set AITUNE_CACHE_DIR" in runner.invoke(app, ["doctor"]).output


@pytest.mark.parametrize("as_json", [False, True])
def test_doctor_leaves_with_one_when_torch_cannot_be_used(tmp_path: Path, as_json: bool) -> None:
    (tmp_path / "torch.py").write_text("raise ImportError('libtorch.so: cannot open shared object file')")
    code = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); from aitune.cli.main import app; app()"
    arguments = ["doctor", *(["--json"] if as_json else [])]
    result = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=False)
    assert result.returncode == 1
    message = json.loads(result.stdout)["error"] if as_json else result.stderr
    assert "torch cannot be imported: libtorch.so" in message
    assert "pip install torch" in message
    assert "Traceback" not in result.stderr


def test_findings_are_frozen_records() -> None:
    findings = doctor.look("cpu")
    with pytest.raises(AttributeError):
        findings.device = "cuda"  # type: ignore[misc]
