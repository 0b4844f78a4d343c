import copy
import dataclasses
import threading
from collections import OrderedDict, UserDict, namedtuple
from typing import Any, NamedTuple

import pytest
import torch
from torch.utils import _pytree as pytree

from aitune.torch.module.containers import register_containers
from aitune.torch.module.locator import locator_from_key_path


@dataclasses.dataclass
class Request:
    image: torch.Tensor
    scale: float = 1.0
    mask: torch.Tensor | None = dataclasses.field(init=False, default=None)


@dataclasses.dataclass(frozen=True)
class Frozen:
    x: torch.Tensor
    squared: torch.Tensor = dataclasses.field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "squared", self.x**2)


@dataclasses.dataclass
class WithArgument:
    x: torch.Tensor
    factor: dataclasses.InitVar[int]


@dataclasses.dataclass
class Unfinished:
    x: torch.Tensor
    later: torch.Tensor = dataclasses.field(init=False)


class Options(UserDict):  # type: ignore[type-arg]
    pass


class PickyOptions(UserDict):  # type: ignore[type-arg]
    def __init__(self, data: dict[str, Any], flavour: str) -> None:
        super().__init__(data)
        self.flavour = flavour


class Pair(NamedTuple):
    left: torch.Tensor
    right: torch.Tensor


def flatten(tree: Any) -> tuple[list[Any], pytree.TreeSpec]:
    register_containers(tree)
    return pytree.tree_flatten(tree)


def tensors(tree: Any) -> list[torch.Tensor]:
    return [leaf for leaf in flatten(tree)[0] if isinstance(leaf, torch.Tensor)]


ONE, TWO = torch.ones(1), torch.full((2,), 2.0)


def test_every_field_of_a_dataclass_is_seen_also_one_that_init_does_not_set() -> None:
    request = Request(ONE)
    request.mask = TWO
    leaves, structure = flatten(request)
    assert (leaves[0], leaves[1], leaves[2]) == (ONE, 1.0, TWO)
    rebuilt = pytree.tree_unflatten(leaves, structure)
    assert type(rebuilt) is Request
    assert rebuilt.mask is TWO


def test_rebuilding_does_not_compute_fields_anew() -> None:
    frozen = Frozen(TWO)
    leaves, structure = flatten(frozen)
    rebuilt = pytree.tree_unflatten([ONE, TWO], structure)
    assert len(leaves) == 2
    assert (rebuilt.x, rebuilt.squared) == (ONE, TWO)


def test_a_dataclass_whose_constructor_wants_more_than_its_fields() -> None:
    leaves, structure = flatten(WithArgument(ONE, factor=3))
    assert pytree.tree_unflatten(leaves, structure).x is ONE


def test_a_field_that_was_never_set_stays_unset() -> None:
    leaves, structure = flatten(Unfinished(ONE))
    assert leaves == [ONE]
    assert not hasattr(pytree.tree_unflatten(leaves, structure), "later")


@pytest.mark.parametrize("value", [Options(a=ONE, b=[TWO]), PickyOptions({"a": ONE, "b": [TWO]}, "sweet")])
def test_user_dicts_come_back_as_their_own_class(value: UserDict[str, Any]) -> None:
    leaves, structure = flatten(value)
    rebuilt = pytree.tree_unflatten(leaves, structure)
    assert leaves == [ONE, TWO]
    assert type(rebuilt) is type(value)
    assert rebuilt.data == {"a": ONE, "b": [TWO]}


def test_containers_inside_containers() -> None:
    tree = [OrderedDict(a=Options(b=Request(ONE))), Pair(TWO, {"c": Frozen(ONE)})]
    assert [len(tensor) for tensor in tensors(tree)] == [1, 2, 1, 1]


def test_registering_twice_and_a_redefined_class_are_no_error() -> None:
    def define() -> type:
        return dataclasses.make_dataclass("Redefined", [("x", torch.Tensor)])

    for cls in (define(), define()):
        for _ in range(2):
            leaves, structure = flatten(cls(ONE))
            assert type(pytree.tree_unflatten(leaves, structure)) is cls


@pytest.mark.parametrize("value", [Pair(ONE, TWO), Request(ONE), Options(a=ONE), namedtuple("Late", "x")(ONE)])
def test_the_structure_can_be_written_and_read(value: Any) -> None:
    _, structure = flatten([value])
    assert pytree.treespec_loads(pytree.treespec_dumps(structure)) == structure


def test_a_class_of_the_user_that_is_registered_already_is_left_alone() -> None:
    @dataclasses.dataclass
    class Own:
        x: torch.Tensor
        note: str

    pytree.register_pytree_node(Own, lambda own: ([own.x], own.note), lambda values, note: Own(*values, note))
    leaves, structure = flatten(Own(ONE, "kept"))
    assert leaves == [ONE]
    assert pytree.tree_unflatten(leaves, structure).note == "kept"


def test_a_registered_class_without_named_entries_has_numbered_ones() -> None:
    class Box:
        def __init__(self, *items: Any) -> None:
            self.items = items

    pytree.register_pytree_node(Box, lambda box: (list(box.items), None), lambda items, _: Box(*items))
    register_containers({"x": Box(ONE, TWO)})
    paths, structure = pytree.tree_flatten_with_path({"x": Box(ONE, TWO)})
    assert [locator_from_key_path(path) for path, _ in paths] == [("x", 0), ("x", 1)]
    assert pytree.tree_unflatten([TWO, ONE], structure)["x"].items == (TWO, ONE)


def test_a_class_itself_is_no_container() -> None:
    leaves, _ = flatten([Request])
    assert leaves == [Request]


def test_batch_encoding_keeps_working_methods() -> None:
    transformers = pytest.importorskip("transformers")
    leaves, structure = flatten(transformers.BatchEncoding({"input_ids": ONE}))
    rebuilt = pytree.tree_unflatten(leaves, structure)
    assert type(rebuilt) is transformers.BatchEncoding
    assert rebuilt.to("cpu").input_ids is not None
    assert rebuilt.encodings is None
    assert copy.deepcopy(rebuilt)["input_ids"].equal(ONE)


def test_two_of_one_new_class_in_one_call_and_in_two_threads() -> None:
    @dataclasses.dataclass
    class Fresh:
        x: Any

    class FreshDict(UserDict):  # type: ignore[type-arg]
        pass

    leaves, _ = flatten([Fresh(1), Fresh(FreshDict(a=2)), FreshDict(a=3)])
    assert leaves == [1, 2, 3]

    classes = [dataclasses.make_dataclass(f"Made{number}", ["x"]) for number in range(200)]
    errors: list[Exception] = []
    barrier = threading.Barrier(4)

    def register() -> None:
        barrier.wait()
        try:
            for cls in classes:
                register_containers([cls(1), cls(2)])
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=register) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
