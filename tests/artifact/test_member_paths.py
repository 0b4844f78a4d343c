from __future__ import annotations

from pathlib import PurePosixPath, PureWindowsPath

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aitune.artifact.member_paths import why_clashing, why_unsafe


@pytest.mark.parametrize("path", ["onnx/model.onnx", "a", ".hidden/x", "model.onnx.data", "a-b_c+d=e@f~g"])
def test_ordinary_paths_are_fine(path: str) -> None:
    assert why_unsafe(path) is None


@pytest.mark.parametrize(
    "path",
    [
        "", "/etc/passwd", "../x", "a/../../x", "a/./b", "a//b", "a/", "C:/x", "C:x", "a\\b", "..\\x", "a\0b", "a\nb",
        "~/x/..", "con", "a/NUL.txt", "COM1", "x.", "a:stream", "é", "x" * 201, "a/" * 600 + "a", "...", "aux.h",
    ],
)  # fmt: skip
def test_paths_that_may_lead_elsewhere_are_not(path: str) -> None:
    assert why_unsafe(path) is not None


@given(st.text("ab./\\:~-\n\0 C", max_size=12))
def test_no_path_that_passes_leaves_its_folder(path: str) -> None:
    if why_unsafe(path) is None:
        for flavour in (PurePosixPath, PureWindowsPath):
            assert ".." not in flavour(path).parts
            assert not flavour(path).is_absolute()
            assert not flavour(path).drive


def test_clashes() -> None:
    assert why_clashing(["a/b", "a/c", "d"]) is None
    assert "twice" in str(why_clashing(["a", "A"]))
    assert why_clashing(["a", "a/b"]) is not None
    assert why_clashing(["a/b", "a"]) is not None
