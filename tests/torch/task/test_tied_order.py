"""Integers that hang on the order of equal values."""

import pytest
import torch
from correctness_models import references_of
from torch import nn

from aitune.testing.graphs import call
from aitune.torch.task.correctness import check


class Function(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x)


def references_for(function):
    generator = torch.Generator().manual_seed(0)
    return references_of(Function(function), [call(torch.randn(size, 9, generator=generator)) for size in (2, 5)])


def from_the_other_end(order):
    """The same with ties broken the other way."""

    def infer(x):
        return x.shape[-1] - 1 - order(x.flip(-1))

    return infer


OPEN = {
    "topk": lambda x: x.round().topk(4, -1).indices,
    "sort": lambda x: x.round().sort(-1).indices,
    "argsort": lambda x: x.relu().argsort(-1, descending=True),
}


@pytest.mark.parametrize("name", OPEN)
def test_another_order_of_equal_values_is_right(name):
    references = references_for(OPEN[name])
    agreement = check(from_the_other_end(OPEN[name]), references)
    assert agreement.passed, agreement.rejection
    assert any("order of equal values" in note for note in agreement.notes)


@pytest.mark.parametrize("name", OPEN)
def test_a_wrong_index_is_wrong_all_the_same(name):
    references = references_for(OPEN[name])
    assert check(lambda x: OPEN[name](x) + 9, references).rejection.check == "value"
    assert check(lambda x: OPEN[name](-x), references).rejection.check == "value"


@pytest.mark.parametrize(
    "order",
    [lambda x: x.round().sort(stable=True, dim=-1).indices, lambda x: x.topk(4, -1).indices, lambda x: (x * 9).long()],
    ids=["stable", "no ties", "no sort"],
)
def test_nothing_is_open_where_there_is_a_promise_or_no_tie(order):
    references = references_for(order)
    assert all(known.tied is None for made in references.calls for known in made.expectations)
    assert check(lambda x: order(x).flip(-1), references).rejection.check == "value"


def test_a_row_without_ties_may_stand_beside_one_with_ties():
    three = torch.randn(3, 9, generator=torch.Generator().manual_seed(0))
    three[1] = three[1].round()
    module = Function(lambda x: x.topk(4, -1).indices)
    references = references_of(module, [call(three[:1]), call(three)])
    assert any(known.tied is not None for made in references.calls for known in made.expectations)
    assert references.rows
    assert check(module, references).passed


@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.uint16, torch.int32], ids=str)
def test_indices_of_another_dtype_are_compared_as_well(dtype):
    references = references_for(lambda x: OPEN["topk"](x).to(dtype))
    other_order = from_the_other_end(OPEN["topk"])
    assert check(lambda x: other_order(x).to(dtype), references).passed
