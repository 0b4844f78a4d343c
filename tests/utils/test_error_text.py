import pytest

from aitune.exceptions import TuningError
from aitune.utils.error_text import error_line, error_lines, error_reason


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


def test_a_message_of_aitune_is_a_reason_of_its_own() -> None:
    assert error_reason(TuningError("nothing is left")) == "nothing is left"
    assert error_reason(KeyError("x")) == "KeyError: 'x'"
