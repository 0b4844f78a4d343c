import functools
import inspect
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from aitune.exceptions import UnsupportedCallError
from aitune.torch.module.forward_signature import ForwardSignature


def plain(x, mask=None):
    return {"x": x, "mask": mask}


def positional_only(a, b=10, /, c=20):
    return {"a": a, "b": b, "c": c}


def keyword_only(x, *, mask=None, flag):
    return {"x": x, "mask": mask, "flag": flag}


def everything(a, /, x, *args, c=30, **kwargs):
    return {"a": a, "x": x, "args": args, "c": c, "kwargs": kwargs}


def only_keywords(**kwargs):
    return kwargs


def only_positions(*args):
    return args


def nothing():
    return ()


FORWARDS = [plain, positional_only, keyword_only, everything, only_keywords, only_positions, nothing]
NAMES = ["a", "b", "c", "x", "mask", "flag", "args", "kwargs", "other"]
CALLS = st.tuples(
    st.lists(st.integers(), max_size=4).map(tuple), st.dictionaries(st.sampled_from(NAMES), st.integers(), max_size=4)
)


def given_by_position(forward: Callable[..., Any]) -> set[str]:
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.VAR_POSITIONAL)
    return {p.name for p in inspect.signature(forward).parameters.values() if p.kind in kinds}


@pytest.mark.parametrize("forward", FORWARDS, ids=lambda forward: forward.__name__)
@given(call=CALLS)
def test_a_call_is_accepted_as_python_does_and_comes_back_as_the_same_call(
    forward: Callable[..., Any], call: tuple[tuple[int, ...], dict[str, int]]
) -> None:
    args, kwargs = call
    signature = ForwardSignature.from_callable(forward)
    try:
        expected = forward(*args, **kwargs)
    except TypeError:
        with pytest.raises(UnsupportedCallError):
            signature.bind(args, kwargs)
        return
    if given_by_position(forward) & set(kwargs):
        # Legal in Python where there is **kwargs; refused here, because one name can hold one value only.
        with pytest.raises(UnsupportedCallError, match="parameter given by position"):
            signature.bind(args, kwargs)
        return
    sample = signature.to_call(signature.bind(args, kwargs))
    assert forward(*sample.args, **sample.kwargs) == expected


@given(call=CALLS)
def test_binding_the_canonical_call_changes_nothing(call: tuple[tuple[int, ...], dict[str, int]]) -> None:
    signature = ForwardSignature.from_callable(only_keywords)
    named = signature.bind((), call[1])
    sample = signature.to_call(named)
    assert signature.bind(sample.args, sample.kwargs) == named
    assert list(named) == list(call[1])


@pytest.mark.parametrize(("args", "kwargs"), [((1, 2), {}), ((1,), {"mask": 2}), ((), {"mask": 2, "x": 1})])
def test_positional_keyword_and_mixed_calls_are_one(args: tuple[int, ...], kwargs: dict[str, int]) -> None:
    signature = ForwardSignature.from_callable(plain)
    named = signature.bind(args, kwargs)
    assert list(named.items()) == [("x", 1), ("mask", 2)]
    assert signature.to_call(named) == ((1, 2), {})


def test_a_parameter_left_out_is_not_the_same_as_its_default_given() -> None:
    signature = ForwardSignature.from_callable(plain)
    assert signature.bind((1,), {}) != signature.bind((1, None), {})


def test_a_keyword_never_fills_a_positional_only_parameter() -> None:
    signature = ForwardSignature.from_callable(everything)
    with pytest.raises(UnsupportedCallError, match="'a'"):
        signature.bind((), {"a": 1, "x": 2})


def test_bound_wrapped_partial_and_module_forwards() -> None:
    class Doubled(torch.nn.Module):
        def forward(self, x, scale=2.0):
            return x * scale

    def decorated(function):
        @functools.wraps(function)
        def wrapper(*args, **kwargs):
            return function(*args, **kwargs)

        return wrapper

    assert ForwardSignature.from_callable(Doubled().forward).positional == ("x", "scale")
    assert ForwardSignature.from_callable(decorated(plain)).positional == ("x", "mask")
    partial = ForwardSignature.from_callable(functools.partial(plain, mask=3))
    assert (partial.positional, partial.keyword_only) == (("x",), ("mask",))
    assert partial.required == {"x"}


def test_a_forward_without_a_readable_signature_takes_everything() -> None:
    class Unreadable:
        __signature__ = "none"

        def __call__(self, *args: int, **kwargs: int) -> None: ...

    signature = ForwardSignature.from_callable(Unreadable())
    assert signature.to_call(signature.bind((1, 2), {"b": 3})) == ((1, 2), {"b": 3})
