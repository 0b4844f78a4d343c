"""The page of aitune.torch.tune_strategy.multi_backend_strategy, entry by entry."""

import inspect

import pytest
from api_table import (
    NAMED_REST,
    POSITIONAL,
    REQUIRED,
    Method,
    assert_walk_fails_without,
    check_method,
    parameters_of,
    positional,
)

from aitune.torch.tune_strategy.mixin.find_max_batch_size_mixin import FindMaxBatchSizeMixin
from aitune.torch.tune_strategy.multi_backend_strategy import MultiBackendStrategy

CONSTRUCTOR = (
    ("backends", POSITIONAL, None),
    ("workflow", POSITIONAL, "aot"),
    ("kwargs", NAMED_REST, REQUIRED),
)
DISTRIBUTED = (("distributed", POSITIONAL, False),)
REST = (("kwargs", NAMED_REST, REQUIRED),)

METHODS = [
    Method("_backends", kind="property"),
    Method("_configure_for_module", positional("module")),
    Method("_default_aot_backends", DISTRIBUTED, abstract=True),
    Method("_default_jit_backends", DISTRIBUTED, abstract=True),
    Method("_resolve_default_backends"),
    Method("for_aot", REST, kind="classmethod"),
    Method("for_jit", REST, kind="classmethod"),
]


def test_the_class_and_its_base():
    assert issubclass(MultiBackendStrategy, FindMaxBatchSizeMixin)
    assert inspect.isabstract(MultiBackendStrategy)
    assert MultiBackendStrategy.__module__ == "aitune.torch.tune_strategy.multi_backend_strategy"


def test_the_constructor():
    assert parameters_of(MultiBackendStrategy.__init__) == CONSTRUCTOR


@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.name)
def test_a_method(method):
    check_method(MultiBackendStrategy, method)


@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.name)
def test_the_walk_fails_when_a_method_is_missing_or_takes_other_parameters(method):
    assert_walk_fails_without(MultiBackendStrategy, method)


def test_the_attribute_with_its_default():
    assert MultiBackendStrategy.__dict__["_resolved_backends"] is None


def test_each_strategy_must_define_both_workflows_explicitly():
    assert {"_default_aot_backends", "_default_jit_backends"} <= MultiBackendStrategy.__abstractmethods__


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("enable_find_max_batch_size", (("enable", POSITIONAL, True),)),
        ("find_max_batch_size", positional("module", "name", "graph_spec", "data", "device", "cache_dir")),
    ],
)
def test_what_the_base_offers(name, parameters):
    assert parameters_of(getattr(FindMaxBatchSizeMixin, name)) == parameters


def test_the_backend_class_of_the_search_can_be_set():
    method = FindMaxBatchSizeMixin.set_find_max_batch_size_default_backend_class
    assert parameters_of(method, is_bound=True) == positional("backend_class")
