import pytest

from aitune.utils.error_text import error_line


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (ValueError("no such size"), "ValueError: no such size"),
        (RuntimeError("\n first\nsecond"), "RuntimeError: first"),
        (RuntimeError(" \n"), "RuntimeError"),
        (KeyError(), "KeyError"),
    ],
)
def test_an_exception_is_one_line(error: Exception, line: str) -> None:
    assert error_line(error) == line
