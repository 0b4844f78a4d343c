import copy
import dataclasses
import enum
import math
from collections import OrderedDict, UserDict, deque
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils import _pytree as pytree

from aitune.exceptions import UnsupportedCallError
from aitune.torch.module.forward_signature import ForwardSignature
from aitune.torch.module.graph_match import mismatch
from aitune.torch.module.graph_spec import GraphSpec
from aitune.torch.module.guard_source import NoGuardError, SourceNames, guard_source, parameter_list
from aitune.torch.module.sample_metadata import SampleMetadata
from aitune.torch.module.tensor_spec import Axis, Symbol


class Pair(NamedTuple):
    left: Any
    right: Any


@dataclasses.dataclass
class Request:
    image: Any
    mask: Any = None


@dataclasses.dataclass(frozen=True)
class Unfinished:
    image: Any
    later: Any = dataclasses.field(init=False)


class Options(UserDict):  # type: ignore[type-arg]
    pass


class Mode(enum.Enum):
    FAST = 1


class Level(enum.IntEnum):
    LOW = 1


def forward(a, /, b=None, *rest, c=None, **more):
    return None


SIGNATURE = ForwardSignature.from_callable(forward)
DTYPES = st.sampled_from([torch.float32, torch.float64, torch.int64, torch.bool, torch.complex64])
TENSORS = st.builds(
    lambda shape, dtype: torch.zeros(shape, dtype=dtype), st.lists(st.integers(0, 3), max_size=3), DTYPES
)
CONSTANTS = st.sampled_from(
    [None, True, False, 0, 1, 2, 0.0, -0.0, 1.0, math.nan, "a", "{0}", b"a", Mode.FAST, Level.LOW, 1j, torch.float32,
     torch.device("cpu"), torch.strided, torch.channels_last, torch.Size([1]), ...]
)  # fmt: skip
KEYS = st.sampled_from(["x", "y", "image", "{mask}", "not a name"])
LEAVES = TENSORS | CONSTANTS


def containers(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    dicts = st.dictionaries(KEYS, inner, max_size=3)
    return (
        st.lists(inner, max_size=3)
        | st.tuples(inner, inner)
        | dicts
        | dicts.map(OrderedDict)
        | dicts.map(UserDict)
        | dicts.map(Options)
        | st.builds(Pair, inner, inner)
        | st.builds(Request, inner, inner)
        | st.builds(Unfinished, inner)
    )


TREES = st.recursive(LEAVES, containers, max_leaves=5)
CALLS = st.tuples(
    st.lists(TREES, min_size=1, max_size=3).map(tuple), st.dictionaries(st.sampled_from("cde"), TREES, max_size=2)
)


def bound(call: tuple[tuple[Any, ...], dict[str, Any]]) -> dict[str, Any]:
    return SIGNATURE.bind(*call)


def graph_of(call: Any, axes: Callable[[int], Axis] = Axis, strict: bool = True) -> GraphSpec:
    spec = SampleMetadata.from_inputs(bound(call), strict=strict)
    spec = spec.with_axes([tuple(axes(axis.size) for axis in tensor.axes) for tensor in spec.tensor_specs])
    return GraphSpec("graph0", spec, spec, SIGNATURE)


def written_guard(graph_spec: GraphSpec, equal_symbols: Any = ()) -> Callable[..., Any]:
    """A function that returns the tensors of a call of the graph, ``None`` for other calls."""
    names = SourceNames()
    guard = guard_source(graph_spec, names, equal_symbols)
    source = (
        f"def guarded({parameter_list(graph_spec.forward_signature)}):\n"
        f"    if {' and '.join(guard.conditions)}:\n        return [{', '.join(guard.tensors)}]\n"
    )
    exec(source, names.objects)
    function = names.objects["guarded"]
    return lambda *args, **kwargs: function(None, *args, **kwargs)


def belongs(call: Any, graph_spec: GraphSpec, equal_symbols: Any = ()) -> bool:
    try:
        metadata = SampleMetadata.from_inputs(bound(call), strict=graph_spec.input_spec.strict)
    except UnsupportedCallError:
        return False
    return mismatch(metadata, graph_spec, equal_symbols) is None


@st.composite
def changed(draw: st.DrawFn, call: Any) -> Any:
    """The same call with one leaf replaced, or with sizes one larger."""
    leaves, structure = pytree.tree_flatten(call)
    leaves = [copy.copy(leaf) for leaf in leaves]
    place = draw(st.integers(0, len(leaves) - 1)) if leaves else 0
    if leaves and draw(st.booleans()):
        leaves[place] = draw(LEAVES)
    elif leaves and isinstance(leaves[place], torch.Tensor):
        leaves[place] = leaves[place].new_zeros([size + 1 for size in leaves[place].shape])
    return pytree.tree_unflatten(leaves, structure)


@settings(max_examples=300)
@given(call=CALLS, data=st.data(), strict=st.booleans())
def test_the_written_guard_says_what_the_pytree_says(call: Any, data: st.DataObject, strict: bool) -> None:
    axes = data.draw(
        st.sampled_from([Axis, lambda size: Axis(1, Symbol("n", 0, 2)), lambda size: Axis(2, Symbol("n", 0, 1))])
    )
    graph_spec = graph_of(call, axes, strict)
    guard = written_guard(graph_spec)
    for other in (call, data.draw(changed(call)), data.draw(CALLS)):
        tensors = guard(*other[0], **other[1])
        assert (tensors is not None) == belongs(other, graph_spec), (graph_spec, other)
        if tensors is not None:
            expected = graph_spec.input_spec.tensors_of(bound(other))
            assert all(one is another for one, another in zip(tensors, expected, strict=True))


@pytest.mark.parametrize("left", [torch.zeros(2, 3), torch.zeros(4, 3), torch.zeros(3, 3), torch.zeros(2, 4)])
@pytest.mark.parametrize("right", [torch.zeros(2), torch.zeros(1), torch.zeros(4)])
def test_sizes_that_are_one_dimension_have_to_agree(left: torch.Tensor, right: torch.Tensor) -> None:
    graph_spec = graph_of(((torch.zeros(2, 3), torch.zeros(1)), {}))
    one, other = Symbol("one", 1, 3), Symbol("other", 1, 3)
    graph_spec.input_spec = graph_spec.input_spec.with_axes([(Axis(2, one), Axis(3)), (Axis(1, other),)])
    call = ((left, right), {})
    expected = left.shape[0] in (2, 4) and left.shape[1] == 3 and right.shape[0] <= 3
    assert (written_guard(graph_spec)(left, right) is not None) == expected == belongs(call, graph_spec)
    merged = [("one", "other", "unknown")]
    expected = expected and left.shape[0] // 2 == right.shape[0]
    assert (written_guard(graph_spec, merged)(left, right) is not None) == expected
    assert belongs(call, graph_spec, merged) == expected


@pytest.mark.parametrize("container", [dict, OrderedDict, UserDict])
def test_the_order_of_a_dict_counts_because_a_forward_may_go_through_it(container: Any) -> None:
    x, y = torch.zeros(1), torch.ones(1)
    guard = written_guard(graph_of(((container({"x": x, "y": y}),), {})))
    assert guard(container({"x": x, "y": y})) == [x, y]
    assert guard(container({"y": y, "x": x})) is None
    more = written_guard(graph_of(((x,), {"d": x, "e": y})))
    assert more(x, d=x, e=y) is not None
    assert more(x, e=y, d=x) is None


def test_a_missing_field_of_a_dataclass_is_no_error() -> None:
    request = Request(torch.zeros(1), torch.zeros(1))
    guard = written_guard(graph_of(((request,), {})))
    assert guard(request) is not None
    del request.mask
    request.__dict__.pop("image")
    assert guard(request) is None
    unfinished = Unfinished(torch.zeros(1))
    guard = written_guard(graph_of(((unfinished,), {})))
    assert guard(unfinished) is not None
    object.__setattr__(unfinished, "later", torch.zeros(1))
    assert guard(unfinished) is None


@pytest.mark.parametrize(
    "other",
    [
        torch.zeros(2).to_sparse(), torch.zeros(2).as_subclass(type("Own", (torch.Tensor,), {})),
        torch.zeros(2, device="meta"), torch.zeros(2, dtype=torch.float64), torch.zeros(2, 1),
        torch.complex(torch.zeros(2), torch.ones(2)).conj().imag, 2.0, None, "x", [torch.zeros(2)],
    ],
    ids=["sparse", "subclass", "meta", "dtype", "rank", "negative", "number", "None", "text", "list"],
)  # fmt: skip
def test_what_looks_like_the_tensor_but_is_not_is_left_to_the_original(other: Any) -> None:
    guard = written_guard(graph_of(((torch.zeros(2),), {})))
    assert guard(torch.zeros(2)) is not None
    assert guard(torch.nn.Parameter(torch.zeros(2))) is not None
    assert guard(other) is None


def test_a_lazy_conjugate_is_left_to_the_original() -> None:
    z = torch.zeros(2, dtype=torch.complex64)
    guard = written_guard(graph_of(((z,), {})))
    assert guard(z) is not None
    assert guard(z.conj()) is None
    assert guard(z.conj().resolve_conj()) is not None


@pytest.mark.parametrize("value", [deque([torch.zeros(1)]), {1: torch.zeros(1)}, torch.max(torch.zeros(1, 1), 0)])
def test_what_has_no_written_guard_is_said(value: Any) -> None:
    with pytest.raises(NoGuardError):
        guard_source(graph_of(((value,), {})), SourceNames())


def test_a_parameter_with_a_name_of_our_own_has_no_written_function() -> None:
    with pytest.raises(NoGuardError):
        parameter_list(ForwardSignature(positional=("_aitune_x",)))


def test_parameters_may_be_named_as_what_the_source_uses() -> None:
    def shadowing(len, isinstance=1, getattr=None, *, not_=1, v0=2):
        return None

    signature = ForwardSignature.from_callable(shadowing)
    named = signature.bind((torch.zeros(2), True, {"a": torch.zeros(1)}), {})
    spec = SampleMetadata.from_inputs(named, strict=True)
    guard = written_guard(GraphSpec("g", spec, spec, signature))
    assert guard(torch.zeros(2), True, {"a": torch.zeros(1)}) is not None
    assert guard(torch.zeros(2), 1, {"a": torch.zeros(1)}) is None
