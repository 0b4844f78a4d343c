"""Capture as a whole: modules with generated signatures, called with generated values in every style."""

import copy
import textwrap
from collections import OrderedDict, UserDict
from typing import Any

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from serving_fakes import FakeServable, FakeTuner, FlatServable, served
from torch.utils import _pytree as pytree

from aitune.torch.module.recording_module import recorded_batch_size
from aitune.torch.module.wrapper_module import Module

TENSORS = st.builds(
    lambda shape, dtype: torch.arange(torch.Size(shape).numel()).reshape(shape).to(dtype),
    st.lists(st.integers(1, 3), max_size=3),
    st.sampled_from([torch.float32, torch.bfloat16, torch.int64, torch.bool]),
)
LEAVES = TENSORS | st.none() | st.booleans() | st.integers(-2, 2) | st.floats() | st.sampled_from(["a", "b"])
KEYS = st.sampled_from(["k", "l", "not a name"])


def containers(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    dicts = st.dictionaries(KEYS, inner, max_size=2)
    return st.lists(inner, max_size=2) | st.tuples(inner) | dicts | dicts.map(OrderedDict) | dicts.map(UserDict)


VALUES = st.recursive(LEAVES, containers, max_leaves=4)
KINDS = ("positional only", "positional", "keyword only")


@st.composite
def signatures(draw: st.DrawFn) -> dict[str, Any]:
    """Names of the parameters by kind, which of them have a default, and whether there are ``*args``, ``**kwargs``."""
    counts = {kind: draw(st.integers(0, 2)) for kind in KINDS}
    names = {kind: [f"{kind[0]}{kind[-1]}{n}" for n in range(count)] for kind, count in counts.items()}
    by_position = [*names["positional only"], *names["positional"]]
    first_default = draw(st.integers(0, len(by_position)))
    optional = {*by_position[first_default:], *(name for name in names["keyword only"] if draw(st.booleans()))}
    return {"names": names, "optional": optional, "rest": draw(st.booleans()), "more": draw(st.booleans())}


def module_of(signature: dict[str, Any]) -> torch.nn.Module:
    """A module that returns everything it was given, with every number changed."""
    names = signature["names"]

    def written(name: str) -> str:
        return f"{name}=0.5" if name in signature["optional"] else name

    parts = ["self", *map(written, names["positional only"])]
    parts += ["/", *map(written, names["positional"])]
    parts += ["*rest"] if signature["rest"] else (["*"] if names["keyword only"] else [])
    parts += [*map(written, names["keyword only"])] + (["**more"] if signature["more"] else [])
    given = (
        [name for kind in KINDS for name in names[kind]] + ["rest"] * signature["rest"] + ["more"] * signature["more"]
    )
    source = f"""
        class Generated(torch.nn.Module):
            def forward({", ".join(parts)}):
                return pytree.tree_map(changed, [{", ".join(given)}])
    """
    namespace = {"torch": torch, "pytree": pytree, "changed": changed}
    exec(textwrap.dedent(source), namespace)
    return namespace["Generated"]().eval()  # type: ignore[operator]


def changed(leaf: Any) -> Any:
    return leaf * 2 if isinstance(leaf, torch.Tensor) and leaf.dtype is not torch.bool else leaf


@st.composite
def calls(draw: st.DrawFn, signature: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    names = signature["names"]
    by_position = [*names["positional only"], *names["positional"]]
    required = [name for name in by_position if name not in signature["optional"]]
    fewest = min(len(required), len(names["positional only"]))
    count = draw(st.integers(fewest, len(by_position)))
    args = [draw(VALUES) for _ in range(count)]
    if signature["rest"] and count == len(by_position):
        args += draw(st.lists(VALUES, max_size=2))
    left = [name for name in by_position[count:] if name in names["positional"]] + names["keyword only"]
    kwargs = {name: draw(VALUES) for name in left if name not in signature["optional"] or draw(st.booleans())}
    if signature["more"]:
        kwargs.update(draw(st.dictionaries(st.sampled_from(["extra", "other"]), VALUES, max_size=2)))
    return tuple(args), dict(draw(st.permutations(list(kwargs.items()))))


def same(one: Any, other: Any) -> bool:
    left, structure = pytree.tree_flatten(one)
    right, other_structure = pytree.tree_flatten(other)
    return structure == other_structure and all(
        type(a) is type(b)
        and (torch.equal(a, b) and a.dtype is b.dtype if isinstance(a, torch.Tensor) else repr(a) == repr(b))
        for a, b in zip(left, right, strict=True)
    )


@settings(max_examples=200)
@given(data=st.data(), kind=st.sampled_from([FakeServable, FlatServable]))
def test_a_call_is_recorded_replayed_and_served_in_every_style(data: st.DataObject, kind: type[FakeServable]) -> None:
    signature = data.draw(signatures())
    args, kwargs = data.draw(calls(signature))
    module = module_of(signature)
    before = dict(module.__dict__)
    expected = module(*args, **kwargs)
    wrapped = Module(module)
    wrapped.enable_recording()
    untouched = copy.deepcopy((args, kwargs))
    assert same(wrapped(*args, **kwargs), expected)
    # What is returned as it came is the memory of an argument.
    assert all("shares the memory of argument" in problem for problem in wrapped.recording_problems)
    (graph,) = wrapped.recorded_graphs()
    (sample,) = graph.samples
    assert same(module(*sample.args, **sample.kwargs), expected)
    tensors = graph.spec.input_tensors(args, kwargs)
    replayed = graph.spec.make_call(tensors)
    assert same(module(*replayed.args, **replayed.kwargs), expected)
    wrapped.tune(strategy=FakeTuner(kind))
    assert same(wrapped(*args, **kwargs), expected)
    assert served(wrapped) == 1
    assert same((args, kwargs), untouched)
    wrapped.unwrap()
    assert module.__dict__ == before


class Rows(torch.nn.Module):
    """Every row of the output depends on the same row of the inputs alone."""

    def forward(self, x: torch.Tensor, options: dict[str, torch.Tensor], scale: float = 2.0) -> dict[str, torch.Tensor]:
        repeated = options["mask"].reshape(x.shape[0], -1).sum(1)
        return {"y": x * scale + repeated[:, None], "z": repeated}


@given(
    batches=st.lists(st.integers(1, 5), min_size=2, max_size=4, unique=True),
    lengths=st.lists(st.integers(1, 6), min_size=4, max_size=4),
    factor=st.integers(1, 3),
    wanted=st.integers(1, 12),
)
def test_axes_are_found_and_a_batch_can_be_made_of_any_size(
    batches: list[int], lengths: list[int], factor: int, wanted: int
) -> None:
    wrapped = Module(Rows().eval())
    wrapped.enable_recording()
    given_lengths = lengths[: len(batches)]
    for batch, length in zip(batches, given_lengths, strict=True):
        with recorded_batch_size(batch):
            wrapped(torch.randn(batch, length), {"mask": torch.randn(batch * factor, 2)})
    (graph,) = wrapped.recorded_graphs()
    spec = graph.spec
    x, mask = spec.input_spec.tensor_specs
    length_axis = x.axes[1]
    assert (x.axes[0].size, x.axes[0].symbol) == (1, spec.batch_symbol)
    assert (mask.axes[0].size, mask.axes[0].symbol) == (factor, spec.batch_symbol)
    assert mask.axes[1].symbol is None
    assert (spec.get_min_batch_size(), spec.get_max_batch_size()) == (min(batches), max(batches))
    if len(set(given_lengths)) == 1:
        assert length_axis.symbol is None
    elif length_axis.symbol != spec.batch_symbol:
        assert (length_axis.min, length_axis.max) == (min(given_lengths), max(given_lengths))
    else:
        # By chance the length was the same multiple of the batch size in every call.
        ratios = {length / batch for batch, length in zip(batches, given_lengths, strict=True)}
        assert len(ratios) == 1
    sample = graph.samples[0]
    made = spec.make_batch(sample.args, sample.kwargs, wanted)
    assert spec.batch_size_of(made) == wanted
    rows = min(wanted, batches[0])
    trimmed, original = wrapped.original(*made.args, **made.kwargs), wrapped.original(*sample.args, **sample.kwargs)
    if length_axis.symbol != spec.batch_symbol:
        torch.testing.assert_close(trimmed["y"][:rows], original["y"][:rows])
    torch.testing.assert_close(trimmed["z"][:rows], original["z"][:rows])
    wrapped.unwrap()
