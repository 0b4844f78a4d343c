import pytest

from aitune.utils.error_text import error_line, error_lines


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


def test_an_exception_is_a_few_lines() -> None:
    assert error_lines(RuntimeError("\none\n\n  two\nthree"), 2) == "RuntimeError: one\n  two"
