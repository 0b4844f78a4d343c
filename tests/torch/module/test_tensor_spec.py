import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from aitune.torch.module.tensor_spec import Axis, Symbol, TensorSpec

BATCH = Symbol("batch0", 1, 8, is_batch=True)
LENGTH = Symbol("dim0", 2, 5)


@given(st.lists(st.integers(0, 4), max_size=5), st.sampled_from([torch.float32, torch.int64, torch.bool]))
def test_a_tensor_is_described_with_every_axis_fixed(shape: list[int], dtype: torch.dtype) -> None:
    spec = TensorSpec.of(torch.zeros(shape, dtype=dtype), ("x",))
    assert spec.shape == spec.min_shape == spec.max_shape == tuple(shape)
    assert (spec.rank, spec.dtype, spec.device, spec.locator) == (len(shape), dtype, "cpu", ("x",))


@given(st.integers(1, 16), st.integers(0, 6), st.integers(0, 6))
def test_an_axis_is_its_factor_times_its_symbol(factor: int, low: int, extra: int) -> None:
    axis = Axis(factor, Symbol("n", low, low + extra))
    assert (axis.min, axis.max) == (factor * low, factor * (low + extra))
    for value in range(low, low + extra + 1):
        assert axis.at({"n": value}) == factor * value
        assert axis.min <= axis.at({"n": value}) <= axis.max


def test_a_fixed_axis_needs_no_symbols() -> None:
    assert Axis(3).at({}) == Axis(3).min == Axis(3).max == 3


def test_an_axis_of_an_unknown_symbol_cannot_be_sized() -> None:
    with pytest.raises(KeyError):
        Axis(1, LENGTH).at({"batch0": 2})


def test_shapes_name_their_symbols() -> None:
    spec = TensorSpec.of(torch.zeros(2, 6, 3)).with_axes((Axis(1, BATCH), Axis(2, LENGTH), Axis(3)))
    assert spec.shape == ("batch0", "2*dim0", 3)
    assert spec.min_shape == (1, 4, 3)
    assert spec.max_shape == (8, 10, 3)
    assert str(spec) == "output: float32[batch0, 2*dim0, 3]"
