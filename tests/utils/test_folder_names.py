from __future__ import annotations

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from aitune.utils.folder_names import folder_name

NAMES = [
    "",
    ".",
    "..",
    "a/b",
    "a\\b",
    "a_b",
    "A_B",
    "x" * 1000,
    "é" * 300,
    "nul\0",
    "samples",
    "new\nline",
    "~",
    "\ud800",
]


def test_every_name_is_a_folder_of_its_own(tmp_path: Path) -> None:
    for name in NAMES:
        (tmp_path / folder_name(name)).mkdir()
    assert len({folder_name(name).lower() for name in NAMES}) == len(NAMES) == len(list(tmp_path.iterdir()))


@given(st.text())
def test_the_name_is_short_plain_and_the_same_each_time(text: str) -> None:
    name = folder_name(text)
    assert len(name) <= 80
    assert name.isascii()
    assert name.replace("-", "").replace("_", "").isalnum()
    assert name == folder_name(text)


def test_what_is_readable_comes_first() -> None:
    assert folder_name("text encoder").startswith("text_encoder-")
