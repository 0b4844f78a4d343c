import json
import math
from collections import OrderedDict, UserDict
from dataclasses import make_dataclass
from typing import Any, NamedTuple

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils import _pytree as pytree

from aitune.exceptions import ArtifactError
from aitune.torch.module.forward_signature import ForwardSignature
from aitune.torch.module.graph_spec import GraphSpec
from aitune.torch.module.plain_data import graph_spec_from_dict, graph_spec_to_dict
from aitune.torch.module.sample_metadata import Constant, SampleMetadata
from aitune.torch.module.tensor_spec import Axis, Symbol


class Pair(NamedTuple):
    left: torch.Tensor
    right: Any


Request = make_dataclass("Request", [("image", torch.Tensor), ("scale", float)])

CONSTANTS = (
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4)
    | st.sampled_from([torch.float16, torch.device("cpu"), torch.device("cuda:1"), torch.strided, torch.channels_last])
)  # fmt: skip
TENSORS = st.builds(
    lambda shape, dtype: torch.zeros(shape, dtype=dtype),
    st.lists(st.integers(0, 3), max_size=3),
    st.sampled_from([torch.float32, torch.bfloat16, torch.int64, torch.bool]),
)
TREES = st.recursive(
    TENSORS | CONSTANTS,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.tuples(inner, inner)
        | st.dictionaries(st.text(max_size=3), inner, max_size=3)
        | st.builds(UserDict, st.dictionaries(st.text(max_size=3), inner, max_size=2))
    ),
    max_leaves=6,
)


def spec_of(inputs: dict[str, Any], output: Any, signature: ForwardSignature | None = None) -> GraphSpec:
    return GraphSpec(
        "graph0",
        SampleMetadata.from_inputs(inputs, strict=True),
        SampleMetadata.from_outputs(output, strict=True),
        signature or ForwardSignature(positional=tuple(inputs)),
    )


def through_json(spec: GraphSpec) -> GraphSpec:
    return graph_spec_from_dict(json.loads(json.dumps(graph_spec_to_dict(spec))))


def comparable(leaf: Any) -> Any:
    return leaf.key if isinstance(leaf, Constant) else leaf


@given(st.dictionaries(st.sampled_from(["x", "y", "options"]), TREES, max_size=3), TREES)
def test_a_spec_comes_back_from_json_equal(inputs: dict[str, Any], output: Any) -> None:
    spec = spec_of(inputs, output)
    read = through_json(spec)
    assert (read.name, read.input_spec, read.output_spec) == (spec.name, spec.input_spec, spec.output_spec)
    assert read.forward_signature == spec.forward_signature
    for one, other in ((spec.input_spec, read.input_spec), (spec.output_spec, read.output_spec)):
        assert [comparable(leaf) for leaf in one.leaves] == [comparable(leaf) for leaf in other.leaves]
        assert one.strict == other.strict


def test_axes_symbols_and_signature_come_back() -> None:
    batch, length = Symbol("batch0", 1, 8, is_batch=True), Symbol("length", 2, 9, opt=4)
    signature = ForwardSignature.from_callable(lambda a, /, b=1, *rest, c, d=2, **more: None)
    plain = spec_of({"a": torch.zeros(2, 6), "b": 1, "c": None}, torch.zeros(4), signature)
    spec = GraphSpec(
        plain.name,
        plain.input_spec.with_axes([(Axis(1, batch), Axis(2, length))]),
        plain.output_spec.with_axes([(Axis(1, Symbol("out0", 3, 4)),)]),
        signature,
    )
    read = through_json(spec)
    assert read.symbols == {"batch0": batch, "length": length}
    assert read.batch_symbol == batch
    assert read.output_spec.tensor_specs == spec.output_spec.tensor_specs
    assert read.input_spec.tensor_specs == spec.input_spec.tensor_specs
    assert read.forward_signature == signature
    assert read.describe() == spec.describe()


@pytest.mark.parametrize(
    "value",
    [Pair(torch.zeros(1), 2), Request(torch.zeros(1), 0.5), UserDict(a=torch.zeros(1)), OrderedDict(a=torch.zeros(1))],
    ids=["named tuple", "dataclass", "user dict", "ordered dict"],
)
def test_containers_come_back_as_their_own_class(value: Any) -> None:
    read = through_json(spec_of({"x": value}, value))
    tensor = torch.ones(1)
    assert type(read.input_spec.rebuild([tensor])["x"]) is type(value)
    assert type(read.make_output([tensor])) is type(value)


def test_a_nan_constant_is_still_the_same_graph() -> None:
    read = through_json(spec_of({"x": math.nan}, torch.zeros(1)))
    assert read.input_spec == SampleMetadata.from_inputs({"x": math.nan}, strict=True)


def test_a_container_without_a_stored_form_is_named() -> None:
    class Box:
        def __init__(self, item: Any) -> None:
            self.item = item

    pytree.register_pytree_node(Box, lambda box: ([box.item], None), lambda items, _: Box(*items))
    with pytest.raises(ArtifactError, match="holds a container that has no stored form"):
        graph_spec_to_dict(spec_of({"x": Box(torch.zeros(1))}, torch.zeros(1)))


@pytest.mark.parametrize("key", [(1, 2), torch.float32, torch.ones(2)], ids=["tuple", "dtype", "tensor"])
def test_keys_without_a_stored_form_are_named(key: Any) -> None:
    with pytest.raises(ArtifactError, match=r"x\[.*holds a container that"):
        graph_spec_to_dict(spec_of({"x": {key: torch.zeros(1)}}, torch.zeros(1)))


@pytest.mark.parametrize("inputs", [{"x": "\ud800"}, {"\ud800": 1}, {"x": {"\ud800": torch.zeros(1)}}])
def test_a_text_that_no_file_can_hold_is_named(inputs: dict[str, Any]) -> None:
    with pytest.raises(ArtifactError, match="graph0 holds a text that no file can hold"):
        graph_spec_to_dict(spec_of(inputs, torch.zeros(1)))


GOOD = graph_spec_to_dict(
    GraphSpec(
        "graph0",
        SampleMetadata.from_inputs({"x": torch.zeros(2)}).with_axes([(Axis(1, Symbol("n", 1, 2)),)]),
        SampleMetadata.from_outputs(torch.zeros(2)),
        ForwardSignature(positional=("x",)),
    )
)


def damaged(*path: str | int, value: Any) -> dict[str, Any]:
    data = json.loads(json.dumps(GOOD))
    target = data
    for key in path[:-1]:
        target = target[key]
    target[path[-1]] = value
    return data  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    "data",
    [
        {},
        damaged("symbols", value=[]),
        damaged("symbols", 0, "colour", value="red"),
        damaged("signature", value=None),
        damaged("inputs", "structure", value="{"),
        damaged("inputs", "structure", value="[1, 2]"),
        damaged(
            "inputs",
            "structure",
            value='[1, {"type": "collections.defaultdict", "context": {}, "children_spec": []}]',
        ),
        damaged("inputs", "leaves", 0, "dtype", value="float33"),
        damaged("inputs", "leaves", 0, "dtype", value="nn"),
        damaged("inputs", "leaves", 0, "axes", value=3),
    ],
)
def test_damaged_data_is_an_artifact_error(data: dict[str, Any]) -> None:
    with pytest.raises(ArtifactError, match="cannot be read"):
        graph_spec_from_dict(data)
