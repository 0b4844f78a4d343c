import gc
import weakref

import pytest
import torch

from aitune.torch.module.registry import fresh_module_registry, module_registry
from aitune.torch.module.wrapper_module import Module


def linear() -> torch.nn.Linear:
    return torch.nn.Linear(1, 1)


def test_wrappers_are_found_by_module_in_the_order_in_which_they_were_made() -> None:
    modules = [linear() for _ in range(3)]
    wrappers = [Module(module) for module in modules]
    assert module_registry().modules() == wrappers
    assert all(
        module_registry().wrapper_of(module) is wrapper for module, wrapper in zip(modules, wrappers, strict=True)
    )
    assert module_registry().wrapper_of(linear()) is None


def test_names_are_made_different() -> None:
    wrappers = [Module(linear()) for _ in range(3)]
    assert [wrapper.name for wrapper in wrappers] == ["Linear", "Linear_1", "Linear_2"]


def test_a_dropped_module_is_forgotten_and_its_name_is_free(caplog: pytest.LogCaptureFixture) -> None:
    original = linear()
    gone = weakref.ref(original)
    Module(original, "encoder")
    del original
    again = Module(linear(), "encoder")
    assert gone() is None
    assert module_registry().modules() == [again]
    assert not caplog.records


def test_a_module_keeps_its_wrapper_as_long_as_somebody_holds_the_module() -> None:
    original = linear()
    Module(original, "kept")
    gc.collect()
    assert [wrapper.name for wrapper in module_registry().modules()] == ["kept"]


def test_a_taken_name_passes_to_the_newer_module_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    older, newer = Module(linear(), "encoder"), Module(linear(), "encoder")
    assert "passes to a newer one" in caplog.text
    assert module_registry().modules() == [older, newer]
    older.unwrap()
    assert Module(linear(), None).name == "Linear"
    assert module_registry().unused_name("encoder") == "encoder_1"


def test_a_module_that_gets_another_name_gives_the_old_one_free(caplog: pytest.LogCaptureFixture) -> None:
    original = linear()
    for name in ("first", "second", "first"):
        assert Module(original, name).name == name
    assert not caplog.records
    assert module_registry().unused_name("second") == "second"
    Module(original).unwrap()
    assert module_registry().unused_name("first") == "first"


def test_an_unwrapped_module_is_forgotten() -> None:
    wrapped = Module(linear(), "encoder")
    wrapped.unwrap()
    assert module_registry().modules() == []
    assert module_registry().unused_name("encoder") == "encoder"


def test_a_fresh_registry_holds_inside_the_block_only() -> None:
    outer = Module(linear(), "outer")
    with fresh_module_registry() as registry:
        assert registry.modules() == []
        Module(linear(), "outer")
    assert module_registry().modules() == [outer]
