import pytest
import torch
from correctness_models import seeded
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from aitune.exceptions import AITuneUserInputError
from aitune.testing.graphs import call, record_graph
from aitune.torch.dynamic_shapes import BatchDim, DynamicDim
from aitune.torch.module.tensor_spec import Symbol, TensorSpec
from aitune.torch.task.call_sizes import corner_sizes, interior_sizes
from aitune.torch.task.corner_inputs import labelled_calls
from aitune.torch.task.value_rules import ValueRule


class Several(nn.Module):
    """Takes anything with a batch axis and a length."""

    def forward(self, ids, mask, position_ids, pixels):
        return ids.float() * mask + position_ids + pixels.mean()


def several_call(batch, length, seed=0):
    generator = torch.Generator().manual_seed(seed + 10 * batch + length)
    ids = torch.randint(5, 30, (batch, length), generator=generator)
    mask = torch.ones(batch, length, dtype=torch.int64)
    mask[:, length - batch // 2 :] = 0
    positions = torch.arange(length).expand(batch, length).clone()
    return call(ids, mask, positions, torch.rand(batch, 2, 3, generator=generator))


def several(calls=((1, 6), (4, 6), (1, 9), (4, 9)), dynamic_shapes=None):
    return record_graph(seeded(Several), [several_call(*c) for c in calls], [c[0] for c in calls], dynamic_shapes)


def batch(minimum, maximum, opt=None):
    return Symbol("batch0", minimum, maximum, opt, is_batch=True)


# -- sizes ---------------------------------------------------------------------------------------------------------


def test_both_ends_of_every_range_and_a_size_in_between():
    sizes = corner_sizes({"batch0": batch(1, 8), "dim0": Symbol("dim0", 4, 20)}, [{"batch0": 1, "dim0": 4}])
    assert {"batch0": 1, "dim0": 4} in sizes
    assert {"batch0": 8, "dim0": 20} in sizes
    assert {"batch0": 1, "dim0": 20} in sizes
    assert {"batch0": 8, "dim0": 4} in sizes
    assert any(1 < found["batch0"] < 8 and found["batch0"] % 2 for found in sizes)
    assert any(4 < found["dim0"] < 20 for found in sizes)


def test_batch_one_wherever_it_is_inside():
    assert corner_sizes({"batch0": batch(1, 8)}, [{"batch0": 4}])[0] == {"batch0": 1}
    assert all(found["batch0"] >= 2 for found in corner_sizes({"batch0": batch(2, 8)}, [{"batch0": 4}]))


def test_opt_where_it_is_given():
    assert {"batch0": 6} in corner_sizes({"batch0": batch(1, 8, opt=6)}, [{"batch0": 1}])


def test_symbols_that_always_agreed_go_together_and_are_tried_apart_once():
    symbols = {name: Symbol(name, 4, 20) for name in ("dim0", "dim1")}
    sizes = corner_sizes(symbols, [{"dim0": 4, "dim1": 4}, {"dim0": 20, "dim1": 20}])
    assert [found for found in sizes if found["dim0"] != found["dim1"]] == [{"dim0": 4, "dim1": 20}] == sizes[-1:]


def test_symbols_that_differed_once_are_their_own():
    symbols = {name: Symbol(name, 4, 20) for name in ("dim0", "dim1")}
    sizes = corner_sizes(symbols, [{"dim0": 4, "dim1": 5}])
    assert {"dim0": 20, "dim1": 5} in sizes


def test_no_symbols_no_corners():
    assert corner_sizes({}, [{}]) == []


@given(st.lists(st.tuples(st.integers(1, 5), st.integers(0, 40), st.booleans()), min_size=1, max_size=6), st.data())
@settings(max_examples=60, deadline=None)
def test_corners_are_inside_different_and_few(ranges, data):
    symbols = {
        f"s{number}": Symbol(f"s{number}", low, low + extra, is_batch=is_batch and number == 0)
        for number, (low, extra, is_batch) in enumerate(ranges)
    }
    recorded = [
        {name: data.draw(st.integers(s.min, s.max)) for name, s in symbols.items()}
        for _ in range(data.draw(st.integers(1, 3)))
    ]
    sizes = corner_sizes(symbols, recorded)
    assert all(symbols[name].min <= size <= symbols[name].max for found in sizes for name, size in found.items())
    assert len({tuple(found.items()) for found in sizes}) == len(sizes) <= 4 * len(symbols) + 4
    has_room = any(s.max - s.min >= len(recorded) for s in symbols.values())
    assert not has_room or any(found not in recorded for found in sizes)


@given(st.integers(1, 6), st.integers(0, 30), st.integers(0, 4), st.integers(0, 99))
@settings(max_examples=60, deadline=None)
def test_interior_points_are_new_inside_and_repeatable(low, extra, count, seed):
    symbols = {"batch0": batch(low, low + extra), "a": Symbol("a", 2, 9), "b": Symbol("b", 2, 9)}
    recorded = [{"batch0": low, "a": 4, "b": 4}]
    corners = corner_sizes(symbols, recorded)
    points = interior_sizes(symbols, recorded, corners, count, seed)
    assert points == interior_sizes(symbols, recorded, corners, count, seed)
    assert len(points) <= count
    assert all(point not in corners and point not in recorded for point in points)
    assert all(symbols[name].min <= size <= symbols[name].max for point in points for name, size in point.items())
    assert all(point["a"] == point["b"] for point in points), "lengths that always agreed stay together"
    assert len(points) == count or extra < 3
    if extra >= 2:
        assert all(low < point["batch0"] < low + extra and 2 < point["a"] < 9 for point in points)


def test_a_range_without_room_has_no_interior_points():
    assert interior_sizes({}, [{}], [], 3, 0) == []
    assert interior_sizes({"batch0": batch(1, 1)}, [{"batch0": 1}], [], 3, 0) == []


# -- calls ---------------------------------------------------------------------------------------------------------


def test_samples_come_first_and_unchanged():
    graph_spec, data = several()
    calls = labelled_calls(graph_spec, data)
    recorded = [labelled for labelled in calls if labelled.is_recorded]
    assert [labelled.where for labelled in recorded] == [f"sample {number}" for number in range(4)]
    for labelled, sample in zip(recorded, data, strict=True):
        for tensor, original in zip(
            graph_spec.input_tensors(*labelled.call), graph_spec.input_tensors(*sample), strict=True
        ):
            assert torch.equal(tensor, original)


def test_names_are_unique_and_say_the_sizes():
    graph_spec, data = several()
    calls = labelled_calls(graph_spec, data)
    assert len({labelled.where for labelled in calls}) == len(calls)
    for labelled in calls:
        if labelled.where.startswith("corner"):
            sizes = graph_spec.symbol_sizes(labelled.call)
            assert labelled.where == "corner " + ", ".join(f"{name}={size}" for name, size in sizes.items())


def test_two_calls_in_a_row_never_agree():
    graph_spec, data = record_graph(
        seeded(lambda: nn.Linear(3, 2)), [call(torch.ones(2, 3) * torch.tensor([1.0, 2, 3]))]
    )
    calls = labelled_calls(graph_spec, data)
    names = [labelled.where for labelled in calls]
    assert names == ["sample 0", "sample 0 with other values", "sample 0, not contiguous"]
    assert calls[0].call.args[0].shape == calls[1].call.args[0].shape
    assert not torch.equal(calls[0].call.args[0], calls[1].call.args[0])


def test_equal_arguments_give_equal_calls_and_another_seed_others():
    graph_spec, data = several()

    def tensors(seed):
        return [
            t
            for labelled in labelled_calls(graph_spec, data, seed=seed)
            for t in graph_spec.input_tensors(*labelled.call)
        ]

    assert all(torch.equal(a, b) for a, b in zip(tensors(1), tensors(1), strict=True))
    assert not all(torch.equal(a, b) for a, b in zip(tensors(1), tensors(2), strict=True))


def test_the_recorded_samples_are_not_written_to():
    graph_spec, data = several()
    before = [tensor.clone() for sample in data for tensor in graph_spec.input_tensors(*sample)]
    for labelled in labelled_calls(graph_spec, data):
        for tensor in graph_spec.input_tensors(*labelled.call):
            if not labelled.is_recorded:
                tensor.zero_()
    after = [tensor for sample in data for tensor in graph_spec.input_tensors(*sample)]
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))


def test_all_rows_of_a_made_call_differ_and_hold_valid_values():
    dims = (BatchDim("batch", 1, 24), DynamicDim("length", 1, 12))
    shapes = {"ids": dims, "mask": dims, "position_ids": dims, "pixels": (dims[0], 2, 3)}
    graph_spec, data = several(dynamic_shapes=shapes)
    recorded_ids = {int(v) for sample in data for v in sample.args[0].reshape(-1)}
    made = [labelled for labelled in labelled_calls(graph_spec, data) if not labelled.is_recorded]
    assert any(labelled.call.args[0].shape == (24, 12) for labelled in made)
    for labelled in made:
        ids, mask, positions, pixels = labelled.call.args
        rows = {tuple(row.tolist()) for row in torch.cat([ids.flatten(1), mask, pixels.flatten(1)], dim=1).double()}
        assert len(rows) == (1 if "equal rows" in labelled.where else ids.shape[0]), labelled.where
        assert {int(v) for v in ids.reshape(-1)} <= recorded_ids
        assert set(mask.reshape(-1).tolist()) <= {0, 1}
        assert (mask == 1).any(dim=-1).all()
        assert (positions.diff(dim=-1) >= 0).all()
        assert ((pixels >= 0) & (pixels <= 1)).all()


def test_a_batch_of_copies_is_replaced_by_a_batch_whose_rows_differ():
    samples = [call(torch.arange(6.0).reshape(1, 6).repeat(size, 1)) for size in (1, 4)]
    graph_spec, data = record_graph(seeded(lambda: nn.Linear(6, 2)), samples)
    made = [labelled for labelled in labelled_calls(graph_spec, data) if labelled.where == "corner batch0=4"]
    assert len(made) == 1
    assert len({tuple(row) for row in made[0].call.args[0].tolist()}) == 4


def test_a_corner_that_was_recorded_well_is_not_made_again():
    graph_spec, data = several()
    assert "corner batch0=4, dim0=9" not in {labelled.where for labelled in labelled_calls(graph_spec, data)}


def test_the_number_of_corners_is_bounded():
    graph_spec, data = several()
    made = [
        labelled for labelled in labelled_calls(graph_spec, data, max_corners=2) if labelled.where.startswith("corner")
    ]
    assert len(made) == 2


def test_rows_on_an_inner_axis_and_several_entries_a_row():
    class Inner(nn.Module):
        def forward(self, x):
            return x * 2

    samples = [call(torch.randn(3, 2 * size, generator=torch.Generator().manual_seed(size))) for size in (2, 5)]
    graph_spec, data = record_graph(seeded(Inner), samples, [2, 5])
    for labelled in labelled_calls(graph_spec, data):
        size = graph_spec.batch_size_of(labelled.call)
        rows = labelled.call.args[0].reshape(3, size, 2).movedim(1, 0).reshape(size, -1)
        assert len({tuple(row) for row in rows.tolist()}) == (1 if "equal rows" in labelled.where else size)


def test_no_samples_is_an_error():
    graph_spec, _ = several()
    with pytest.raises(AITuneUserInputError, match="record at least one"):
        labelled_calls(graph_spec, [])


def test_points_inside_the_range_are_made_too():
    shapes = {"x": (BatchDim("batch", 1, 16), DynamicDim("length", 1, 50))}
    graph_spec, data = record_graph(seeded(nn.Identity), [call(torch.rand(2, 5))], None, {"input": shapes["x"]})
    inside = [labelled for labelled in labelled_calls(graph_spec, data) if labelled.where.startswith("inside")]
    assert len(inside) == 2
    for labelled in inside:
        sizes = graph_spec.symbol_sizes(labelled.call)
        assert labelled.where == f"inside batch={sizes['batch']}, length={sizes['length']}"


def test_one_sample_lies_in_memory_in_another_order():
    graph_spec, data = several()
    (labelled,) = [found for found in labelled_calls(graph_spec, data) if "not contiguous" in found.where]
    assert labelled.where == "sample 0, not contiguous"
    tensors, recorded = graph_spec.input_tensors(*labelled.call), graph_spec.input_tensors(*data[0])
    assert all(torch.equal(a, b) for a, b in zip(tensors, recorded, strict=True))
    assert not tensors[3].is_contiguous()
    assert not tensors[3].clone().is_contiguous(), "the copy that a candidate gets keeps the order"


# -- a user's factory ----------------------------------------------------------------------------------------------


def doubled_calls(input_factory):
    class Doubles(nn.Module):
        def forward(self, x, flag=True):
            return x * 2

    dims = {"x": (BatchDim("batch", 1, 4), DynamicDim("length", 2, 9))}
    graph_spec, data = record_graph(Doubles(), [call(torch.rand(2, 5), flag=True)], None, dims)
    return graph_spec, labelled_calls(graph_spec, data, input_factory=input_factory)


@pytest.mark.parametrize("form", [dict, tuple])
def test_a_factory_makes_the_calls_of_wanted_sizes(form):
    def factory(sizes):
        x = torch.full((sizes["batch"], sizes["length"]), 7.0)
        return {"x": x, "flag": True} if form is dict else (x, True)

    graph_spec, calls = doubled_calls(factory)
    made = [labelled for labelled in calls if labelled.where.startswith(("corner", "inside"))]
    assert len(made) > 5
    for labelled in made:
        assert labelled.is_valid
        assert not labelled.is_recorded
        (x,) = graph_spec.input_tensors(*labelled.call)
        assert (x == 7.0).all()
        assert f"batch={x.shape[0]}, length={x.shape[1]}" in labelled.where


@pytest.mark.parametrize(
    ("factory", "said"),
    [
        (lambda sizes: 1 / 0, r"input_factory\(\{'batch': 1, 'length': \d\}\) raised ZeroDivisionError"),
        (lambda sizes: None, "returned is a NoneType; expected a tensor, a tuple"),
        (lambda sizes: [torch.rand(2, 2)], "returned is a list"),
        (lambda sizes: {"y": torch.rand(2, 2)}, "no call of the module: forward has no parameter 'y'"),
        (lambda sizes: torch.rand(2, 2), "another kind of call"),
        (lambda sizes: (torch.rand(2), True), "another kind of call"),
        (lambda sizes: (torch.rand(2, 2).double(), True), "another kind of call"),
        (lambda sizes: (torch.rand(2, 2), False), "another kind of call"),
        (lambda sizes: (torch.rand(7, 7), True), r"with shape \(7, 7\); expected \(1, \d\)"),
    ],
)
def test_a_factory_that_makes_no_call_is_an_error(factory, said):
    with pytest.raises(AITuneUserInputError, match=said):
        doubled_calls(factory)


# -- values --------------------------------------------------------------------------------------------------------


def rule_of(*tensors, name="x"):
    return ValueRule.from_tensors(tensors, TensorSpec.of(tensors[0], (name,)))


def varied(rule, tensor, axis=-1):
    return rule.vary(tensor, 1, axis, torch.Generator().manual_seed(0))


def test_an_all_ones_mask_gets_zeros_only_if_it_is_called_a_mask():
    ones = torch.ones(2, 8, dtype=torch.int64)
    assert torch.equal(varied(rule_of(ones, name="beams"), ones), ones)
    made = varied(rule_of(ones, name="attention_mask"), ones)
    assert set(made.reshape(-1).tolist()) == {0, 1}
    assert (made == 1).any(dim=-1).all()


def test_bools_and_additive_masks_keep_a_place_that_counts():
    bools = torch.tensor([[False, True, False]])
    assert varied(rule_of(bools), bools).any()
    additive = torch.tensor([[0.0, -torch.inf, -torch.inf]])
    rule = rule_of(additive)
    assert rule.kind == "binary"
    assert (rule.tidy(torch.full((2, 3), -torch.inf)) == 0.0).any(dim=-1).all()


def test_integers_come_from_the_data():
    data = torch.tensor([[3, 900, 41, 7]])
    rule = rule_of(data)
    made = varied(rule, data)
    assert not torch.equal(made, data)
    assert set(made.reshape(-1).tolist()) <= {3, 900, 41, 7}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64, torch.complex64])
def test_continuous_values_stay_in_their_range(dtype):
    data = torch.rand(3, 9, generator=torch.Generator().manual_seed(1)).to(dtype)
    made = varied(rule_of(data), data)
    assert made.dtype is dtype
    assert not torch.equal(made, data)
    parts = torch.view_as_real(made) if dtype.is_complex else made
    assert (parts >= 0).all()
    assert (parts <= 1).all()


def test_increasing_integers_stay_increasing():
    data = torch.arange(5).reshape(1, 5)
    rule = rule_of(data)
    assert torch.equal(varied(rule, data), data)
    assert rule.tidy(torch.tensor([[0, 1, 2, 0, 1]])).tolist() == [[0, 0, 1, 1, 2]]


def test_empty_and_constant_inputs_are_left_alone():
    empty = torch.zeros(0, 3)
    assert varied(rule_of(empty), empty).shape == (0, 3)
    constant = torch.full((2, 3), 7)
    assert torch.equal(varied(rule_of(constant), constant), constant)


def test_nan_among_continuous_values_stays_where_it_was():
    data = torch.tensor([[0.5, float("nan"), 0.25, 0.75]])
    made = varied(rule_of(data), data)
    assert made.isnan().tolist() == [[False, True, False, False]]
    assert not torch.equal(made[0, 2:], data[0, 2:])


def test_floats_of_two_values_are_only_moved():
    data = torch.tensor([[0.5, -2.0, -2.0, -2.0]])
    rule = rule_of(data)
    assert rule.choices.tolist() == [-2.0, 0.5]
    assert varied(rule, data).tolist() == [[-2.0, 0.5, -2.0, -2.0]]
