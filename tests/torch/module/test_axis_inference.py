from dataclasses import dataclass
from typing import Any

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from aitune.exceptions import AITuneUserInputError
from aitune.torch.dynamic_shapes import BatchDim, DynamicDim
from aitune.torch.module.axis_inference import (
    Observation,
    infer_input_axes,
    infer_output_axes,
    symbol_values,
)
from aitune.torch.module.tensor_spec import Axis, TensorSpec

Shapes = tuple[tuple[int, ...], ...]


def specs_of(shapes: Shapes) -> list[TensorSpec]:
    return [TensorSpec.of(torch.empty(shape, device="meta"), (f"x{i}",)) for i, shape in enumerate(shapes)]


def observe(*calls: tuple[int | None, Shapes], outputs: tuple[Shapes, ...] | None = None) -> list[Observation]:
    return [
        Observation(batch_size, shapes, outputs[number] if outputs else ())
        for number, (batch_size, shapes) in enumerate(calls)
    ]


def inferred(calls: list[Observation], dynamic_shapes: dict[Any, Any] | None = None) -> list[tuple[Axis, ...]]:
    return infer_input_axes(specs_of(calls[0].input_shapes), calls, dynamic_shapes or {})


@dataclass(frozen=True)
class Fixed:
    size: int

    def at(self, batch_size: int, lengths: list[int]) -> int:
        return self.size


@dataclass(frozen=True)
class Batch:
    factor: int

    def at(self, batch_size: int, lengths: list[int]) -> int:
        return self.factor * batch_size


@dataclass(frozen=True)
class Dynamic:
    which: int

    def at(self, batch_size: int, lengths: list[int]) -> int:
        return lengths[self.which]


AXES = st.builds(Fixed, st.integers(0, 4)) | st.builds(Batch, st.integers(1, 4)) | st.builds(Dynamic, st.integers(0, 1))
TENSORS = st.lists(st.lists(AXES, max_size=4), min_size=1, max_size=3)


@st.composite
def true_calls(draw: st.DrawFn) -> tuple[list[list[Any]], list[Observation], list[int], list[list[int]]]:
    tensors = draw(TENSORS)
    batch_sizes = draw(st.lists(st.integers(1, 5), min_size=2, max_size=5).filter(lambda sizes: len(set(sizes)) > 1))
    lengths = [draw(st.lists(st.integers(1, 9), min_size=2, max_size=2)) for _ in batch_sizes]
    for which in range(2):
        values = [row[which] for row in lengths]
        assume(len(set(values)) > 1)
        # A length that is a multiple of the batch size in every call cannot be told from a batch axis.
        assume(len({value / size for value, size in zip(values, batch_sizes, strict=True)}) > 1)
    calls = [
        Observation(size, tuple(tuple(axis.at(size, row) for axis in axes) for axes in tensors), ())
        for size, row in zip(batch_sizes, lengths, strict=True)
    ]
    return tensors, calls, batch_sizes, lengths


@given(true_calls())
def test_the_truth_is_found_from_the_shapes(case: tuple[Any, list[Observation], list[int], list[list[int]]]) -> None:
    tensors, calls, batch_sizes, lengths = case
    names = []
    for axes, found in zip(tensors, inferred(calls), strict=True):
        for truth, axis in zip(axes, found, strict=True):
            if isinstance(truth, Fixed):
                assert axis == Axis(truth.size)
                continue
            assert axis.symbol is not None
            if isinstance(truth, Batch):
                assert (axis.size, axis.symbol.name, axis.symbol.is_batch) == (truth.factor, "batch0", True)
                assert (axis.symbol.min, axis.symbol.max) == (min(batch_sizes), max(batch_sizes))
            else:
                seen = [row[truth.which] for row in lengths]
                assert (axis.size, axis.symbol.is_batch) == (1, False)
                assert (axis.symbol.min, axis.symbol.max) == (min(seen), max(seen))
                names.append(axis.symbol.name)
    assert len(names) == len(set(names))  # two lengths that were equal by chance stay two


def holds(axes_of_tensors: list[tuple[Axis, ...]], shapes: Shapes, values: dict[str, int]) -> bool:
    for axes, shape in zip(axes_of_tensors, shapes, strict=True):
        for axis, size in zip(axes, shape, strict=True):
            if axis.at(values) != size:
                return False
            if axis.symbol is not None and not axis.symbol.min <= values[axis.symbol.name] <= axis.symbol.max:
                return False
    return True


@given(st.data())
def test_what_is_inferred_holds_for_every_call_it_was_inferred_from(data: st.DataObject) -> None:
    ranks = data.draw(st.lists(st.integers(0, 3), min_size=2, max_size=4))
    num_inputs = data.draw(st.integers(1, len(ranks) - 1))
    calls = []
    for _ in range(data.draw(st.integers(1, 4))):
        shapes = tuple(tuple(data.draw(st.integers(0, 6)) for _ in range(rank)) for rank in ranks)
        batch_size = data.draw(st.none() | st.integers(0, 4))
        calls.append(Observation(batch_size, shapes[:num_inputs], shapes[num_inputs:]))
    input_axes = inferred(calls)
    output_axes = infer_output_axes(specs_of(calls[0].output_shapes), calls, input_axes)
    for call in calls:
        values = symbol_values(call.input_shapes, input_axes)
        assert holds(input_axes, call.input_shapes, values)
        outputs_alone = symbol_values(call.output_shapes, output_axes)
        assert holds(output_axes, call.output_shapes, {**outputs_alone, **values})


def test_one_batch_size_leaves_every_axis_fixed() -> None:
    assert inferred(observe((2, ((2, 3),)), (2, ((2, 3),)))) == [(Axis(2), Axis(3))]


def test_an_unknown_batch_size_makes_no_batch_axis() -> None:
    (axes,) = inferred(observe((None, ((1, 3),)), (2, ((2, 3),))))
    assert axes[0].symbol is not None
    assert not axes[0].symbol.is_batch


def test_batch_times_heads_is_a_batch_axis_with_a_factor() -> None:
    (axes,) = inferred(observe((1, ((12, 5),)), (4, ((48, 5),))))
    assert str(axes[0]) == "12*batch0"


def test_a_length_equal_to_the_batch_size_by_chance_is_found_out_by_a_further_call() -> None:
    by_chance = [(1, ((1, 1),)), (2, ((2, 2),))]
    (axes,) = inferred(observe(*by_chance))
    assert [str(axis) for axis in axes] == ["batch0", "batch0"]  # two calls cannot tell
    (axes,) = inferred(observe(*by_chance, (2, ((2, 5),))))
    assert [str(axis) for axis in axes] == ["batch0", "dim0"]


def test_outputs_follow_the_symbols_of_the_inputs() -> None:
    calls = observe(
        (1, ((1, 5),)), (2, ((2, 9),)), (2, ((2, 6),)),
        outputs=(((1, 10, 3), (7,)), ((2, 18, 3), (8,)), ((2, 12, 3), (9,))),
    )  # fmt: skip
    input_axes = inferred(calls)
    logits, other = infer_output_axes(specs_of(calls[0].output_shapes), calls, input_axes)
    assert [str(axis) for axis in logits] == ["batch0", "2*dim0", "3"]
    assert str(other[0]) == "out0"
    assert (other[0].min, other[0].max) == (7, 9)


def test_outputs_follow_an_input_that_is_empty_in_one_call() -> None:
    calls = observe((1, ((0, 3),)), (1, ((2, 3),)), outputs=(((0, 0),), ((2, 4),)))
    (axes,) = infer_output_axes(specs_of(calls[0].output_shapes), calls, inferred(calls))
    assert [str(axis) for axis in axes] == ["dim0", "2*dim0"]
    elsewhere = observe((1, ((0, 3),)), (1, ((2, 3),)), outputs=(((1,),), ((2,),)))
    (axes,) = infer_output_axes(specs_of(elsewhere[0].output_shapes), elsewhere, inferred(elsewhere))
    assert str(axes[0]) == "out0"


def test_declared_axes_win() -> None:
    (axes,) = inferred(
        observe((1, ((1, 4, 3),)), (2, ((2, 6, 3),))), {"x0": (BatchDim("n", 1, 16, 8), DynamicDim("length", 2, 9), 3)}
    )
    assert [(str(axis), axis.min, axis.max) for axis in axes] == [("n", 1, 16), ("length", 2, 9), ("3", 3, 3)]
    assert axes[0].symbol is not None
    assert (axes[0].symbol.is_batch, axes[0].symbol.opt) == (True, 8)


def test_a_declared_batch_axis_names_the_batch_of_the_other_inputs() -> None:
    # Two symbols for one batch would let make_batch grow one input and not the other.
    calls = observe((1, ((1, 3), (4, 2))), (2, ((2, 3), (8, 2))))
    declared, other = inferred(calls, {"x0": (BatchDim("n", 1, 16), 3)})
    assert declared[0].symbol == other[0].symbol
    assert other[0].size == 4


@pytest.mark.parametrize("taken", ["batch0", "dim0", "out0"])
def test_fresh_names_keep_clear_of_declared_ones(taken: str) -> None:
    # One name for two sizes would make them one: the bounds of the first for the values of the second.
    calls = observe((1, ((5,), (6,), (1,))), (2, ((7,), (9,), (2,))), outputs=(((4,), (2,)), ((3,), (8,))))
    input_axes = inferred(calls, {"x0": (DynamicDim(taken, 1, 9),)})
    output_axes = infer_output_axes(specs_of(calls[0].output_shapes), calls, input_axes)
    symbols = {axes[0].symbol for axes in (*input_axes, *output_axes)}
    assert len(symbols) == len({symbol.name for symbol in symbols if symbol is not None}) == 5


@pytest.mark.parametrize(
    ("dynamic_shapes", "message"),
    [
        ({"y": (1, 3)}, r"no input tensor at 'y'; input tensors are x0, x1"),
        ({"x0": (DynamicDim("n", 1, 2),)}, r"'x0' lists 1 axes, the recorded tensor has 2"),
        ({"x0": (DynamicDim("n", 3, 4), 3)}, r"axis 0 of 'x0' was recorded with size 1, outside 3\.\.4"),
        ({"x0": (DynamicDim("n", 1, 2), 4)}, r"axis 1 of 'x0' was recorded with size 3, outside 4\.\.4"),
        ({"x0": (True, 3)}, r"axis 0 of 'x0' must be .* got True"),
        ({"x0": (0, 3)}, r"axis 0 of 'x0' must be .* got 0"),
        ({"x0": ("n", 3)}, r"axis 0 of 'x0' must be .* got 'n'"),
        ({"x0": 3}, r"'x0' must list one entry for each axis.* got 3"),
        ({0: (1, 3)}, r"a path must be .* got 0"),
        ({"x0": (DynamicDim("n", 1, 2), 3), "x1": (DynamicDim("n", 1, 8),)}, r"'n' is defined as .* defined alike"),
        ({"x0": (DynamicDim("n", 1, 9), 3), "x1": (DynamicDim("n", 1, 9),)}, r"'n' had different .* x0 was 1.* x1 was"),
    ],
)  # fmt: skip
def test_a_declaration_that_does_not_fit_is_an_error(dynamic_shapes: dict[Any, Any], message: str) -> None:
    with pytest.raises(AITuneUserInputError, match=message):
        inferred(observe((1, ((1, 3), (4,))), (2, ((2, 3), (8,)))), dynamic_shapes)


def test_what_is_equal_in_one_cache_is_one_size_and_elsewhere_it_is_not() -> None:
    calls = observe((1, ((3,), (3,), (3, 1), (3,), (5,))), (2, ((4,), (4,), (4, 1), (4,), (5,))))
    axes = infer_input_axes(specs_of(calls[0].input_shapes), calls, {}, [None, 0, 0, 1, 1])
    names = [axis[0].symbol.name if axis[0].symbol else axis[0].size for axis in axes]
    assert names == ["dim0", "dim1", "dim1", "dim2", 5]
