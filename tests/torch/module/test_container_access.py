from collections import OrderedDict, UserDict, namedtuple
from typing import Any

import pytest
import torch
from torch.utils import _pytree as pytree

from aitune.torch.module.container_access import NoAccessError, caches_of_leaves, children_of, container_access
from aitune.torch.module.containers import register_containers

Pair = namedtuple("Pair", "left right")


class Bag:
    def __init__(self, items: list[Any]) -> None:
        self.items = items


pytree.register_pytree_node(Bag, lambda bag: (bag.items, ["not keys"] * len(bag.items)), lambda items, _: Bag([*items]))


@pytest.mark.parametrize(
    "value", [[1, 2], (1, 2), Pair(1, 2), {"a": 1, "b": 2}, OrderedDict(a=1, b=2), UserDict(a=1, b=2)], ids=type
)
def test_every_child_is_reached_by_its_expression(value: Any) -> None:
    register_containers(value)
    structure = pytree.tree_structure(value)
    access = container_access(structure)
    names = {"value": value, "_aitune_len": len, "_aitune_getattr": getattr, "_aitune_absent": None}
    assert access.container is type(value)
    assert access.keys is None or eval(access.keys.format("value", ["a", "b"]), names)
    assert all(eval(condition.format("value"), names) for condition in access.conditions)
    found = [eval(access.child("value", number), names) for number in range(len(children_of(structure)))]
    assert found == pytree.tree_leaves(value)


@pytest.mark.parametrize("value", [Bag([1]), {1: 1}, {"a": 1, 2: 3}])
def test_containers_of_other_kinds_are_left_to_the_pytree(value: Any) -> None:
    with pytest.raises(NoAccessError):
        container_access(pytree.tree_structure(value))


def test_leaves_know_which_cache_they_are_part_of() -> None:
    transformers = pytest.importorskip("transformers")
    caches = [transformers.DynamicCache(), transformers.DynamicCache()]
    for cache in caches:
        cache.update(torch.ones(1, 1, 2, 4), torch.ones(1, 1, 2, 4), 0)
    value = {"x": 1, "first": caches[0], "rest": [caches[1], 2]}
    register_containers(value)
    assert caches_of_leaves(pytree.tree_structure(value)) == [None, 0, 0, 1, 1, None]
