"""The set-up script does its work once, and again only when something that it depends on has changed."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

SCRIPT = Path(__file__).parent.parent / "scripts" / "set_up.py"


@pytest.fixture
def set_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The script, pointed at a repository in a temporary folder that looks as if it had been set up."""
    spec = importlib.util.spec_from_file_location("set_up", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    environment = tmp_path / ".venv"
    monkeypatch.setattr(module, "ROOT", tmp_path)
    monkeypatch.setattr(module, "ENVIRONMENT", environment)
    monkeypatch.setattr(module, "INTERPRETER", environment / "bin" / "python")
    monkeypatch.setattr(module, "STAMP", environment / "set-up-stamp")
    module.INTERPRETER.parent.mkdir(parents=True)
    module.INTERPRETER.touch()
    (tmp_path / "pyproject.toml").write_text("[project]\n")
    return module


@pytest.fixture
def commands(set_up: ModuleType, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, ...]]:
    """The commands that the script would have run."""
    commands: list[tuple[str, ...]] = []
    monkeypatch.setattr(set_up, "run", lambda *command: commands.append(command))
    return commands


def test_the_second_run_does_nothing(set_up: ModuleType, commands: list[tuple[str, ...]]) -> None:
    set_up.main()
    assert sum("install" in command for command in commands) == len(set_up.INSTALLS)
    commands.clear()
    set_up.main()
    assert commands == []


@pytest.mark.parametrize("change", ["metadata", "python", "interpreter gone", "place"])
def test_a_change_sets_up_again(
    change: str, set_up: ModuleType, commands: list[tuple[str, ...]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    set_up.main()
    commands.clear()
    if change == "metadata":
        (tmp_path / "pyproject.toml").write_text("[project]\nname = 'other'\n")
    elif change == "python":
        version = (3, 12) if sys.version_info[:2] != (3, 12) else (3, 11)
        monkeypatch.setattr(
            set_up,
            "sys",
            SimpleNamespace(version_info=version, version="3.x", executable=sys.executable, platform=sys.platform),
        )
    elif change == "interpreter gone":
        set_up.INTERPRETER.unlink()
    else:
        monkeypatch.setattr(set_up, "ROOT", tmp_path.joinpath("..", tmp_path.name))
    set_up.main()
    assert any("install" in command for command in commands)


def test_a_failed_command_leaves_no_stamp(set_up: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    set_up.STAMP.write_text("old")
    monkeypatch.setattr(set_up, "INSTALLS", (("--editable", "."),))
    monkeypatch.setattr(set_up, "INTERPRETER", Path("/bin/false"))
    with pytest.raises(SystemExit) as exit_info:
        set_up.main()
    assert exit_info.value.code not in (0, None)
    assert not set_up.STAMP.exists()


@pytest.mark.parametrize("version", [(3, 9), (3, 14)])
def test_a_python_that_is_not_supported_is_refused(
    version: tuple[int, int], set_up: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(set_up, "sys", SimpleNamespace(version_info=version))
    with pytest.raises(SystemExit, match=rf"Python 3\.{version[1]} is not supported"):
        set_up.check_python()


def test_every_install_that_resolves_dependencies_names_torch(set_up: ModuleType) -> None:
    for arguments in set_up.INSTALLS:
        assert set_up.TORCH in arguments or "--no-deps" in arguments
