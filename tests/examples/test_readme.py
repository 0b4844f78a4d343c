from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest


def python_blocks(text: str) -> list[str]:
    """Return the Python blocks of a Markdown text."""
    return re.findall(r"^```python\n(.*?)^```$", text, flags=re.MULTILINE | re.DOTALL)


@pytest.fixture(scope="module")
def readme(repository: Path) -> str:
    return (repository / "README.md").read_text(encoding="utf-8")


def test_the_commands_are_targets_of_the_makefile(readme: str, repository: Path) -> None:
    targets = re.findall(r"^([a-z]+):.*##", (repository / "Makefile").read_text(encoding="utf-8"), flags=re.MULTILINE)
    named = re.findall(r"\bmake (?:PYTHON=\S+ )?([a-z]+)", readme)
    assert {"demo", "test"} <= set(named) <= set(targets)


def test_files_that_it_links_to_exist(readme: str, repository: Path) -> None:
    links = [link for link in re.findall(r"\]\(([^)]+)\)", readme) if "://" not in link]
    assert links
    assert [link for link in links if not (repository / link).exists()] == []


def test_extras_that_it_names_exist(readme: str, repository: Path) -> None:
    project = (repository / "pyproject.toml").read_text(encoding="utf-8")
    extras = re.findall(r"aitune-open\[([a-z]+)\]", readme)
    assert extras
    assert [extra for extra in extras if not re.search(rf"^{extra} = \[", project, flags=re.MULTILINE)] == []


@pytest.mark.slow
def test_the_python_works_when_pasted(readme: str, tmp_path: Path) -> None:
    (program,) = python_blocks(readme)
    answer = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
        env={**os.environ, "AITUNE_CACHE_DIR": str(tmp_path / "cache")},
    )
    assert answer.returncode == 0, answer.stderr
    assert "torch.Size([3, 10])" in answer.stdout
    assert "Module 'classifier'" in answer.stdout
    assert "baseline" in answer.stdout
