import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aitune.exceptions import AITuneUserInputError
from aitune.torch.dynamic_shapes import BatchDim, DynamicDim, check_dynamic_shapes

SIZES = st.integers(min_value=-3, max_value=9)


@given(st.sampled_from([DynamicDim, BatchDim]), SIZES, SIZES, st.none() | SIZES)
def test_exactly_the_bounds_in_order_are_accepted(kind: type[DynamicDim], low: int, high: int, opt: int | None) -> None:
    allowed = 1 <= low < high and (opt is None or low <= opt <= high)
    if allowed:
        dim = kind("length", low, high, opt)
        assert (dim.name, dim.min, dim.max, dim.opt) == ("length", low, high, opt)
        assert hash(dim) == hash(kind("length", low, high, opt))
    else:
        with pytest.raises(AITuneUserInputError, match=f"{kind.__name__} 'length'"):
            kind("length", low, high, opt)


@pytest.mark.parametrize("size", [True, 2.0, "2", None])
@pytest.mark.parametrize("place", ["min", "max"])
def test_only_integers_are_sizes(size: object, place: str) -> None:
    bounds = {"min": 1, "max": 4, place: size}
    with pytest.raises(AITuneUserInputError, match=f"'length': {place} must be an integer of at least 1"):
        DynamicDim("length", **bounds)  # type: ignore[arg-type]


def test_an_integer_of_numpy_becomes_a_plain_one() -> None:
    dim = DynamicDim("length", np.int64(1), np.int32(4), np.int8(2))
    assert [type(size) for size in (dim.min, dim.max, dim.opt)] == [int, int, int]


@pytest.mark.parametrize("name", ["", None, 3])
def test_a_dimension_needs_a_name(name: object) -> None:
    with pytest.raises(AITuneUserInputError, match="name must be a non-empty string"):
        DynamicDim(name, 1, 2)  # type: ignore[arg-type]


def test_a_batch_dimension_is_not_a_dynamic_one_of_the_same_bounds() -> None:
    assert BatchDim("n", 1, 2) != DynamicDim("n", 1, 2)


@pytest.mark.parametrize(
    ("shapes", "said"),
    [
        ([("x", (2,))], "dynamic_shapes must be a dict"),
        ({3: (2,)}, "a path must be a parameter name"),
        ({"": (2,)}, "a path must be a parameter name"),
        ({(): (2,)}, "a path must be a parameter name"),
        *(({"x": dims}, "'x' needs a BatchDim") for dims in (3, "ab", None, (2.0,), (True,), (-1,), ("n",), ((1, 8),))),
    ],
)
def test_what_says_nothing_of_axes_is_refused_at_once(shapes: object, said: str) -> None:
    with pytest.raises(AITuneUserInputError, match=said):
        check_dynamic_shapes(shapes)


def test_axes_are_taken_as_they_are_given() -> None:
    shapes = {"x": (BatchDim("n", 1, 2), 3, 0), ("options", 0): [DynamicDim("m", 1, 2)]}
    assert check_dynamic_shapes(shapes) == shapes
    assert check_dynamic_shapes(None) == {}
