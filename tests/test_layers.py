"""The contract of the layers covers every module: a new file must say where it stands."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
# Packages whose own file only hands names on.
FACADES = {"aitune", "aitune.torch", "aitune.torch.backend"}


def modules() -> set[str]:
    source = ROOT / "src"
    names = (path.relative_to(source).with_suffix("").parts for path in source.rglob("*.py"))
    return {".".join(part for part in parts if part != "__init__") for parts in names}


def listed_layers() -> list[list[str]]:
    if sys.version_info < (3, 11):
        pytest.skip("reading pyproject.toml takes tomllib, which came with Python 3.11")
    import tomllib

    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    layers = next(contract["layers"] for contract in contracts if contract["type"] == "layers")
    return [re.split(r"\s*[|:]\s*", layer) for layer in layers]


def test_every_module_stands_in_one_layer() -> None:
    listed = [name for layer in listed_layers() for name in layer]
    for module in sorted(modules() - FACADES):
        homes = [name for name in listed if module == name or module.startswith(f"{name}.")]
        assert len(homes) == 1, f"{module} stands in {homes or 'no layer'}: list it in pyproject.toml"


def test_every_layer_exists() -> None:
    assert {name for layer in listed_layers() for name in layer} <= modules()
