import enum
import math
from collections import OrderedDict, UserDict
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils import _pytree as pytree

from aitune.exceptions import UnsupportedCallError
from aitune.torch.module.sample_metadata import Constant, SampleMetadata
from aitune.torch.module.tensor_spec import Axis, Symbol

SHAPES = st.lists(st.integers(0, 3), max_size=3)
DTYPES = st.sampled_from([torch.float32, torch.int64, torch.bool])
TENSORS = st.builds(lambda shape, dtype: torch.zeros(shape, dtype=dtype), SHAPES, DTYPES)
CONSTANTS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3)
NAMES = st.sampled_from(["x", "y", "mask", "options"])
TREES = st.recursive(
    TENSORS | CONSTANTS,
    lambda inner: st.lists(inner, max_size=3) | st.tuples(inner, inner) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=6,
)
INPUTS = st.dictionaries(NAMES, TREES, max_size=3)


class Mode(enum.Enum):
    FAST = 1
    SLOW = 2


def strict(**inputs: Any) -> SampleMetadata:
    return SampleMetadata.from_inputs(inputs, strict=True)


def reshaped(tree: Any) -> Any:
    """Every tensor with other sizes of the same rank."""
    return pytree.tree_map(
        lambda leaf: leaf.new_zeros([size + 1 for size in leaf.shape]) if isinstance(leaf, torch.Tensor) else leaf, tree
    )


@given(inputs=INPUTS)
def test_a_call_is_rebuilt_from_its_tensors(inputs: dict[str, Any]) -> None:
    metadata = strict(**inputs)
    rebuilt = metadata.rebuild(metadata.tensors_of(inputs))
    before, structure = pytree.tree_flatten(inputs)
    after, rebuilt_structure = pytree.tree_flatten(rebuilt)
    assert structure == rebuilt_structure
    assert all(one is other or one == other or math.isnan(one) for one, other in zip(before, after, strict=True))


@given(inputs=INPUTS)
def test_other_sizes_are_the_same_graph(inputs: dict[str, Any]) -> None:
    metadata, other = strict(**inputs), strict(**reshaped(inputs))
    assert metadata == other
    assert hash(metadata) == hash(other)
    assert [spec.rank for spec in metadata.tensor_specs] == [spec.rank for spec in other.tensor_specs]


@given(inputs=INPUTS)
def test_leaves_are_tensors_and_constants_in_order(inputs: dict[str, Any]) -> None:
    metadata = strict(**inputs)
    for leaf, value in zip(metadata.leaves, pytree.tree_leaves(inputs), strict=True):
        reached: Any = inputs
        for key in leaf.locator:
            reached = reached[key]
        assert reached is value
    assert [*metadata.tensor_specs, *metadata.constants] == sorted(
        metadata.leaves, key=lambda leaf: isinstance(leaf, Constant)
    )


DISTINCT = [True, 1, 1.0, "1", False, 0, 0.0, -0.0, math.nan, math.inf, None, Mode.FAST, Mode.SLOW, 1j, b"1",
            torch.float32, torch.float16, torch.device("cpu"), torch.strided, torch.channels_last, ...]  # fmt: skip


@pytest.mark.parametrize("left", range(len(DISTINCT)))
def test_constants_are_told_apart_in_strict_mode_only(left: int) -> None:
    for right, value in enumerate(DISTINCT):
        same = strict(flag=DISTINCT[left]) == strict(flag=value)
        assert same == (left == right), (DISTINCT[left], value)
        loose = [SampleMetadata.from_inputs({"flag": flag}) for flag in (DISTINCT[left], value)]
        assert loose[0] == loose[1]


@pytest.mark.parametrize(
    "other",
    [
        {"x": torch.zeros(2)},
        {"x": torch.zeros(2, 3, dtype=torch.float64)},
        {"y": torch.zeros(2, 3)},
        {"x": [torch.zeros(2, 3)]},
        {"x": torch.zeros(2, 3), "mask": None},
        {"x": 1.0},
    ],
    ids=["rank", "dtype", "name", "nesting", "one more argument", "no tensor"],
)
def test_other_kinds_of_calls_are_other_graphs(other: dict[str, Any]) -> None:
    assert strict(x=torch.zeros(2, 3)) != strict(**other)
    assert SampleMetadata.from_inputs({"x": torch.zeros(2, 3)}) != SampleMetadata.from_inputs(other)


def test_a_list_is_not_a_tuple_and_a_dict_not_a_user_dict() -> None:
    x = torch.zeros(1)
    assert strict(x=[x]) != strict(x=(x,))
    assert strict(x={"a": x}) != strict(x=UserDict(a=x))
    assert strict(x={"a": x}) != strict(x=OrderedDict(a=x))


def test_strict_and_loose_metadata_differ() -> None:
    assert SampleMetadata.from_inputs({"x": 1}, strict=True) != SampleMetadata.from_inputs({"x": 1})


def test_a_forward_may_go_through_a_dict_so_its_order_is_part_of_the_call() -> None:
    # torch.cat(list(options.values())) gives other numbers for the other order: one graph for both would be wrong.
    left, right = torch.zeros(1, 2), torch.zeros(1, 2)
    assert strict(options={"a": left, "b": right}) != strict(options={"b": right, "a": left})


def test_the_tensors_of_a_dict_in_another_order_are_found_by_key() -> None:
    left, right, third = torch.zeros(1), torch.ones(1), torch.full((1,), 2.0)
    metadata = strict(options={"a": left, "b": [right, 3]}, x=third)
    found = metadata.tensors_of({"options": {"b": [right, 3], "a": left}, "x": third})
    assert [tensor.item() for tensor in found] == [0.0, 1.0, 2.0]
    with pytest.raises(UnsupportedCallError, match="another structure"):
        metadata.tensors_of({"options": {"c": [right, 3], "a": left}, "x": third})


def test_one_tensor_given_twice_is_two_arguments() -> None:
    x = torch.zeros(2, 3)
    metadata = strict(x=x, y=x)
    assert [spec.locator for spec in metadata.tensor_specs] == [("x",), ("y",)]
    assert metadata == strict(x=x, y=torch.ones(2, 3))
    first, second = torch.zeros(1), torch.ones(1)
    assert metadata.rebuild([first, second]) == {"x": first, "y": second}


@pytest.mark.parametrize("value", [{1, 2}, (i for i in range(1)), object(), range(3)])
def test_what_cannot_be_captured_is_named_with_its_place(value: Any) -> None:
    with pytest.raises(
        UnsupportedCallError, match=r"argument options\['deep'\]\[1\] is a builtins\..*register_pytree_node"
    ):
        strict(options={"deep": [torch.zeros(1), value]})
    with pytest.raises(UnsupportedCallError, match=r"output output\[0\]"):
        SampleMetadata.from_outputs([value])


def test_axes_are_replaced_tensor_by_tensor() -> None:
    batch = Symbol("batch0", 1, 4, is_batch=True)
    metadata = strict(x=torch.zeros(2, 3), flag=True, y=torch.zeros(2))
    changed = metadata.with_axes([(Axis(1, batch), Axis(3)), (Axis(1, batch),)])
    assert changed == metadata
    assert changed.describe() == "x: float32[batch0, 3], flag = True, y: float32[batch0]"


def test_outputs_of_transformers_keep_type_and_names() -> None:
    outputs = pytest.importorskip("transformers.modeling_outputs")
    one, two = torch.zeros(1, 2), torch.ones(1, 2)
    output = outputs.BaseModelOutput(last_hidden_state=one, hidden_states=(one, two))
    metadata = SampleMetadata.from_outputs(output)
    assert [spec.locator for spec in metadata.tensor_specs] == [
        ("last_hidden_state",), ("hidden_states", 0), ("hidden_states", 1)
    ]  # fmt: skip
    rebuilt = metadata.rebuild([two, one, one])
    assert type(rebuilt) is outputs.BaseModelOutput
    assert rebuilt.last_hidden_state is two
    assert rebuilt.attentions is None


def test_an_encoding_of_transformers_is_a_container() -> None:
    transformers = pytest.importorskip("transformers")
    encoding = transformers.BatchEncoding({"input_ids": torch.zeros(1, 2, dtype=torch.int64)})
    metadata = strict(batch=encoding)
    assert metadata.describe() == "batch['input_ids']: int64[1, 2]"
    replaced = torch.ones(1, 2, dtype=torch.int64)
    assert metadata.rebuild([replaced])["batch"].input_ids is replaced
