from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.overrides import TorchFunctionMode

from aitune.torch.module.default_device import CPU, default_device


@pytest.fixture(autouse=True)
def no_default() -> Iterator[None]:
    yield
    torch.set_default_device(None)


def test_the_default_device_is_found_however_it_was_set() -> None:
    assert default_device() == CPU
    with torch.device("meta"):
        assert default_device() == torch.device("meta")
        with torch.device("cpu"):
            assert default_device() == CPU
    torch.set_default_device("meta")
    assert default_device() == torch.device("meta")


def test_any_other_mode_is_no_default_device() -> None:
    class Mode(TorchFunctionMode):
        def __torch_function__(self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None) -> Any:
            return func(*args, **(kwargs or {}))

    with Mode():
        assert default_device() is None
        with torch.device("cpu"):
            assert default_device() is None
