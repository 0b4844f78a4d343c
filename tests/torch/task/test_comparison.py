import math
from collections import OrderedDict, namedtuple

import pytest
import torch
from correctness_models import Scores
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch.utils import _pytree as pytree

from aitune.exceptions import AITuneUserInputError
from aitune.torch.task.accuracy_budget import AccuracyBudget
from aitune.torch.task.comparison import Expectation, compare_outputs
from aitune.torch.task.tolerance import tolerance_for

Pair = namedtuple("Pair", ["first", "second"])
OtherPair = namedtuple("OtherPair", ["first", "second"])


def rejection(reference, candidate, expectations=None, **kwargs):
    return compare_outputs(reference, candidate, expectations, **kwargs).rejection


def values(*shape, seed=0, dtype=torch.float32):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


# -- structure -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("reference", "candidate", "check", "output"),
    [
        ([1, 2], (1, 2), "type", "output"),
        ({"a": [1]}, {"a": (1,)}, "type", "a"),
        (Pair(1, 2), (1, 2), "type", "output"),
        (Pair(1, 2), OtherPair(1, 2), "type", "output"),
        (OrderedDict(a=1), {"a": 1}, "type", "output"),
        ({"a": 1, "b": 2}, {"a": 1}, "structure", "output"),
        ([torch.zeros(1)] * 2, [torch.zeros(1)] * 3, "structure", "output"),
        ({"a": torch.zeros(1)}, {"a": None}, "type", "a"),
        ({"a": {"b": [torch.zeros(1), 3]}}, {"a": {"b": [torch.zeros(1), 4]}}, "value", "a['b'][1]"),
        (3, torch.tensor(3), "type", "output"),
        (torch.tensor(3), 3, "type", "output"),
        (True, 1, "type", "output"),
        (1.0, 1.1, "value", "output"),
        (Scores(torch.zeros(1), torch.zeros(1)), Scores(torch.zeros(1), None), "type", "best"),
    ],
)
def test_structure_and_types(reference, candidate, check, output):
    found = rejection(reference, candidate)
    assert (found.check, found.output) == (check, output)


def test_a_dict_for_a_model_output_is_seen():
    outputs = pytest.importorskip("transformers.modeling_outputs")
    reference = outputs.BaseModelOutput(last_hidden_state=torch.ones(2))
    assert rejection(reference, outputs.BaseModelOutput(last_hidden_state=torch.ones(2))) is None
    found = rejection(reference, {"last_hidden_state": torch.ones(2)})
    assert (found.check, found.got, found.expected) == ("type", "dict", "BaseModelOutput")


def test_a_float_leaf_may_carry_rounding():
    assert rejection({"a": 1.0}, {"a": 1.0 + 1e-7}) is None
    assert rejection({"a": math.nan}, {"a": math.nan}) is None


def test_a_parameter_stands_for_a_tensor():
    assert rejection(torch.ones(2), torch.nn.Parameter(torch.ones(2))) is None


leaves = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 3),
    st.text(max_size=3),
    st.integers(0, 3).map(lambda seed: values(2, 3, seed=seed)),
    st.integers(0, 3).map(lambda seed: torch.arange(3) + seed),
)
nested = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple),
        st.dictionaries(st.text(max_size=2), inner, max_size=3),
        st.tuples(inner, inner).map(lambda two: Pair(*two)),
        st.tuples(inner, inner).map(lambda two: Scores(*two)),
    ),
    max_leaves=8,
)


@given(nested)
@settings(max_examples=60, deadline=None)
def test_a_copy_of_any_output_agrees(output):
    copied = pytree.tree_map_only(torch.Tensor, torch.clone, output)
    assert rejection(output, copied) is None


@given(nested, st.randoms(use_true_random=False))
@settings(max_examples=60, deadline=None)
def test_any_changed_leaf_is_found_at_its_place(output, random):
    rejection(output, output)  # registers the dataclass
    with_paths, structure = pytree.tree_flatten_with_path(output)
    assume(with_paths)
    number = random.randrange(len(with_paths))
    flat = [leaf for _, leaf in with_paths]
    old = flat[number]
    flat[number] = old + 1 if isinstance(old, torch.Tensor) else ("changed", old)
    found = rejection(output, pytree.tree_unflatten(flat, structure))
    assert found is not None
    assert found.check == ("value" if isinstance(old, torch.Tensor) else "type")


# -- dtypes, shapes, finiteness --------------------------------------------------------------------------------------


def test_dtype():
    found = rejection([values(2), values(2)], [values(2), values(2).half()])
    assert (found.check, found.output, found.got, found.expected) == (
        "dtype", "output[1]", "torch.float16", "torch.float32",
    )  # fmt: skip


def test_shape():
    found = rejection({"y": values(2, 3)}, {"y": values(3, 2)})
    assert (found.check, found.output, found.got, found.expected) == ("shape", "y", "(3, 2)", "(2, 3)")


def test_cheaper_checks_come_first_over_all_outputs():
    found = rejection([values(2), values(2)], [values(2) + 1, values(2).double()])
    assert found.check == "dtype"


def test_nan_where_the_reference_is_finite():
    candidate = values(3, 4)
    candidate[1, 2] = math.nan
    found = rejection(values(3, 4), candidate)
    assert (found.check, found.index, found.got) == ("finite", (1, 2), "nan")


def test_the_same_nan_and_infinities_agree():
    output = values(2, 3)
    output[0] = torch.tensor([math.nan, math.inf, -math.inf])
    assert rejection(output, output.clone()) is None


@pytest.mark.parametrize(("there", "here"), [(math.inf, -math.inf), (math.nan, 0.0), (math.inf, 3.0), (0.0, math.inf)])
def test_masks_of_nan_and_infinities_must_be_equal(there, here):
    reference, candidate = values(4), values(4)
    reference[2], candidate[2] = there, here
    found = rejection(reference, candidate)
    assert (found.check, found.index) == ("finite", (2,))


def test_values_beside_an_infinity_are_still_compared():
    reference = values(4)
    reference[0] = math.inf
    candidate = reference.clone()
    candidate[3] += 0.1
    found = rejection(reference, candidate)
    assert (found.check, found.index) == ("value", (3,))


# -- values --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.complex64])
def test_a_tenth_of_the_floor_passes_and_three_times_does_not(dtype):
    floor = tolerance_for(dtype).floor
    reference = values(50, 50).to(torch.complex128 if dtype.is_complex else torch.float64)
    step = floor * reference.abs().square().mean().sqrt()
    # The reference itself is the rounded one, so that its rounding does not count.
    exact = reference.to(dtype)
    noise = torch.sign(values(50, 50, seed=1))
    wide = exact.to(reference.dtype)
    finer = torch.finfo(dtype).eps < floor
    if finer:
        assert rejection(exact, (wide + 0.1 * step * noise).to(dtype)) is None
    found = rejection(exact, (wide + 3 * step * noise).to(dtype))
    assert found.check == "value"


def test_the_noise_of_the_module_widens_the_limit():
    reference = values(100)
    candidate = reference * (1 + 1e-4)
    assert rejection(reference, candidate).check == "value"
    assert rejection(reference, candidate, [Expectation(noise=2e-5)]) is None
    assert rejection(reference, reference * (1 + 3e-4), [Expectation(noise=2e-5)]).check == "value"


def test_the_float64_run_is_what_counts():
    reference, exact = values(100), values(100).double() * (1 + 2e-5)
    assert rejection(reference, exact.float(), [Expectation(exact=exact)]) is None
    assert rejection(reference, reference, [Expectation(exact=exact)]).check == "value"


def test_figures_are_the_plain_formulas():
    reference, candidate = torch.tensor([3.0, 4.0]), torch.tensor([3.0, 4.5])
    (figures,) = compare_outputs(reference, candidate).outputs
    assert figures.relative_l2 == pytest.approx(0.5 / 5.0)
    assert figures.relative_max == pytest.approx(0.5 / 4.0)
    assert figures.cosine == pytest.approx((9 + 18) / (5 * math.hypot(3.0, 4.5)))
    assert figures.allowed == 1e-5


def test_one_element_of_a_million_off_by_a_percent():
    reference = values(1000, 1000)
    index = (617, 3)
    reference[index] = 2.0
    candidate = reference.clone()
    candidate[index] *= 1.01
    found = rejection(reference, candidate)
    assert (found.check, found.index, found.got, found.expected[:3]) == (
        "value",
        index,
        str(candidate[index].item()),
        "2.0",
    )


def test_a_wrong_row_is_seen_among_many_right_ones():
    reference = values(10_000, 4)
    candidate = reference.clone()
    candidate[77] *= 1.0005
    assert rejection(reference, candidate) is not None
    found = rejection(reference, candidate, [Expectation(batch_axis=0)])
    assert found.index[0] == 77
    assert "relative L2" in found.allowed


def test_rows_along_another_axis_in_groups():
    reference = values(3, 8)
    candidate = reference.clone()
    candidate[:, 4:6] = reference[:, 0:2]
    found = rejection(reference, candidate, [Expectation(batch_axis=1, batch_factor=2)])
    assert found.index[1] in (4, 5)


def test_a_zero_reference_allows_the_floor_and_no_more():
    zero = torch.zeros(4)
    assert rejection(zero, zero + 4e-6) is None
    assert rejection(zero, zero + 1e-4).check == "value"
    assert rejection(zero, zero + 1e-3).check == "value"


def test_a_row_near_zero_carries_the_rounding_of_usual_values():
    reference = torch.tensor([[1.0], [-2.0], [1e-5]])
    candidate = reference + torch.tensor([[1e-7], [2e-7], [2e-7]])
    assert rejection(reference, candidate, [Expectation(batch_axis=0, scale=1.0)]) is None
    candidate[2] += 1e-4
    assert rejection(reference, candidate, [Expectation(batch_axis=0, scale=1.0)]).index == (2, 0)


@pytest.mark.parametrize("size", [1e-30, 1e30])
def test_very_small_and_very_large_values_are_compared_relative_to_their_size(size):
    reference = values(20) * size
    assert rejection(reference, reference * (1 + 1e-6)) is None
    assert rejection(reference, reference * 1.001).check == "value"


def test_integers_and_bools_agree_exactly():
    assert rejection(torch.arange(5), torch.arange(5)) is None
    found = rejection(torch.arange(5), torch.tensor([0, 1, 2, 4, 4]))
    assert (found.check, found.index, found.got, found.expected) == ("value", (3,), "4", "3")
    assert "1 of 5" in found.allowed
    assert rejection(torch.tensor([True]), torch.tensor([False])).check == "value"


def test_an_integer_that_hangs_on_rounding_may_take_the_values_seen():
    reference = torch.tensor([1, 2, 3])
    known = [Expectation(alternatives=(torch.tensor([1, 7, 3]),))]
    assert rejection(reference, torch.tensor([1, 7, 3]), known) is None
    assert rejection(reference, torch.tensor([1, 8, 3]), known).index == (1,)
    assert rejection(reference, torch.tensor([7, 2, 3]), known).index == (0,)


def test_complex_values_and_their_place():
    reference = torch.complex(values(3, 2), values(3, 2, seed=1))
    candidate = reference.clone()
    candidate[2, 1] += 0.5j
    assert rejection(reference, reference.clone()) is None
    assert rejection(reference, reference.conj()).check == "value"
    assert rejection(reference, candidate).index == (2, 1)


def test_random_values_need_only_be_finite():
    known = [Expectation(is_random=True)]
    assert rejection(values(3), values(3, seed=1), known) is None
    assert rejection(values(3), values(3) * math.nan, known).check == "finite"
    assert rejection(values(3), values(4), known).check == "shape"
    assert compare_outputs(values(3), values(3, seed=1), known).outputs == ()


def test_empty_and_scalar_tensors():
    assert rejection(torch.zeros(0, 3), torch.zeros(0, 3)) is None
    assert rejection(torch.tensor(2.0), torch.tensor(2.0)) is None
    assert rejection(torch.tensor(2.0), torch.tensor(2.1)).index == ()


def test_a_sparse_tensor_is_compared_by_value_and_not_taken_for_a_dense_one():
    dense = torch.tensor([[0.0, 1.0], [2.0, 0.0]])
    assert rejection(dense.to_sparse(), dense.to_sparse()) is None
    assert rejection(dense.to_sparse(), dense).check == "type"


def test_one_expectation_for_each_tensor():
    with pytest.raises(AITuneUserInputError, match="2 tensors, got 1"):
        compare_outputs([values(1), values(1)], [values(1), values(1)], [Expectation()])


# -- budgets -------------------------------------------------------------------------------------------------------


def test_a_budget_replaces_the_limits_of_rounding():
    reference = values(40)
    lossy = reference * 1.01
    assert rejection(reference, lossy, budget=AccuracyBudget(max_relative_error=0.02)) is None
    found = rejection(reference, lossy, budget=AccuracyBudget(max_relative_error=0.005))
    assert "relative L2 error 0.005, is 0.01" in found.allowed


def test_a_budget_on_the_cosine_is_decisive():
    reference = values(40)
    budget = AccuracyBudget(min_cosine=0.99)
    assert rejection(reference, reference * 3, budget=budget) is None
    assert "cosine" in rejection(reference, values(40, seed=1), budget=budget).allowed


def test_a_budget_on_the_error_is_the_share_of_integers_that_differ():
    reference = torch.arange(10)
    candidate = reference.clone()
    candidate[0] = 5
    assert rejection(reference, candidate, budget=AccuracyBudget(max_relative_error=0.1)) is None
    assert rejection(reference, candidate, budget=AccuracyBudget(max_relative_error=0.05)).check == "value"


def test_a_budget_does_not_forgive_dtypes_or_nan():
    budget = AccuracyBudget(max_relative_error=100.0)
    assert rejection(values(3), values(3).half(), budget=budget).check == "dtype"
    assert rejection(values(3), values(3) * math.nan, budget=budget).check == "finite"


def test_figures_can_be_written_as_json():
    import msgspec

    (figures,) = compare_outputs(values(3), values(3), budget=AccuracyBudget(min_cosine=0.5)).outputs
    assert msgspec.json.decode(msgspec.json.encode(figures), type=type(figures)) == figures
