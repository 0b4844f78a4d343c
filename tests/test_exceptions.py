import inspect
from pathlib import Path

import pytest

from aitune import exceptions
from aitune.exceptions import (
    AITuneEnvironmentError,
    AITuneError,
    AITuneUserInputError,
    BackendError,
    BackendUnavailableError,
    BuildError,
    UnsupportedCallError,
)

ERRORS = [
    value
    for _, value in inspect.getmembers(exceptions, inspect.isclass)
    if issubclass(value, Exception) and value.__module__ == exceptions.__name__
]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: error.__name__)
def test_every_error_is_in_the_tree_and_keeps_message_and_log(error: type[AITuneError]) -> None:
    assert issubclass(error, AITuneError)
    raised = error("went wrong", log_path=Path("build.log"))
    assert (raised.message, raised.log_path, str(raised)) == (
        "went wrong",
        Path("build.log"),
        "went wrong (log: build.log)",
    )
    assert str(error("went wrong")) == "went wrong"


def test_every_error_is_drawn_in_the_docstring_below_its_base() -> None:
    assert exceptions.__doc__ is not None
    names = [line.split("──")[-1].split()[0] for line in exceptions.__doc__.splitlines() if "──" in line]
    assert sorted([*names, "AITuneError"]) == sorted(error.__name__ for error in ERRORS)


def test_the_kinds_that_callers_catch() -> None:
    assert issubclass(UnsupportedCallError, AITuneUserInputError)
    assert issubclass(BackendUnavailableError, AITuneEnvironmentError)
    assert issubclass(BuildError, BackendError)
    assert not issubclass(BackendUnavailableError, BackendError)


def test_a_backend_error_names_backend_and_graph() -> None:
    error = BuildError("no", backend="ONNX Runtime", graph="graph0")
    assert (error.backend, error.graph, error.log_path) == ("ONNX Runtime", "graph0", None)
