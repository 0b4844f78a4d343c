"""The guide to graphs is right: its code runs, and prints what it says."""

import re
from pathlib import Path
from typing import Any

import pytest

from aitune.torch.config import config
from aitune.torch.module.registry import fresh_module_registry

GUIDE = (Path(__file__).parents[2] / "docs" / "graphs.md").read_text()
BLOCKS = re.findall(r"```python\n(.*?)```", GUIDE, re.DOTALL)
(OUTPUT,) = re.findall(r"```text\n(.*?)```", GUIDE, re.DOTALL)


def test_the_code_runs_and_prints_what_the_guide_shows(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    names: dict[str, Any] = {}
    with fresh_module_registry(), config.override(cache_dir=tmp_path):
        exec(compile(BLOCKS[0], "docs/graphs.md", "exec"), names)
        assert capsys.readouterr().out.rstrip() == OUTPUT.rstrip()
        for block in BLOCKS[1:]:
            exec(compile(block, "docs/graphs.md", "exec"), names)
        assert "CallStatistics" in capsys.readouterr().out


@pytest.mark.parametrize("setting", re.findall(r"`config\.(\w+)", GUIDE))
def test_every_setting_in_the_guide_exists(setting: str) -> None:
    assert hasattr(config, setting)
