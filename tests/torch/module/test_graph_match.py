from dataclasses import make_dataclass, replace
from typing import Any

import pytest
import torch

from aitune.torch.module.forward_signature import ForwardSignature
from aitune.torch.module.graph_match import mismatch
from aitune.torch.module.graph_spec import GraphSpec
from aitune.torch.module.sample_metadata import SampleMetadata
from aitune.torch.module.tensor_spec import Axis, Symbol, TensorSpec


def metadata(**inputs: Any) -> SampleMetadata:
    return SampleMetadata.from_inputs(inputs, strict=True)


BATCH, LENGTH = Symbol("batch0", 1, 4, is_batch=True), Symbol("dim0", 2, 8)
SPEC = metadata(x=torch.zeros(2, 3), mask=torch.zeros(4, 5), flag=True).with_axes(
    [(Axis(1, BATCH), Axis(3)), (Axis(2, BATCH), Axis(1, LENGTH))]
)
GRAPH = GraphSpec("graph0", SPEC, SPEC, ForwardSignature(("x", "mask", "flag")))


@pytest.mark.parametrize(
    ("x", "mask", "said"),
    [
        ((4, 3), (8, 8), None),
        ((1, 3), (2, 2), None),
        ((5, 3), (10, 5), "axis 0 of x: float32[5, 3] is outside the tuned range batch0 = 1..4"),
        ((2, 4), (4, 5), "axis 1 of x: float32[2, 4] is outside the tuned range 3 = 3..3"),
        ((2, 3), (6, 5), r"axis 0 of mask: float32[6, 5] is outside the tuned range 2*batch0 = 2..8"),
        ((2, 3), (5, 5), "axis 0 of mask"),
        ((2, 3), (4, 9), "axis 1 of mask: float32[4, 9] is outside the tuned range dim0 = 2..8"),
    ],
)
def test_sizes_outside_the_range_are_said(x: tuple[int, ...], mask: tuple[int, ...], said: str | None) -> None:
    seen = metadata(x=torch.zeros(x), mask=torch.zeros(mask), flag=True)
    reason = mismatch(seen, GRAPH)
    assert (reason is None) == (said is None)
    assert said is None or said in str(reason)


def test_another_kind_of_call_is_described() -> None:
    seen = metadata(x=torch.zeros(2, 3), mask=torch.zeros(4, 5), flag=False)
    assert "flag = False" in str(mismatch(seen, GRAPH))
    assert "flag = True" in str(mismatch(seen, GRAPH))
    seen = metadata(x=torch.zeros(2, 3), mask=torch.zeros(4, 5), flag=True)
    on_cuda = [replace(leaf, device="cuda") if isinstance(leaf, TensorSpec) else leaf for leaf in seen.leaves]
    assert "on cuda, the graph was tuned on cpu" in str(mismatch(replace(seen, leaves=tuple(on_cuda)), GRAPH))


def test_classes_of_one_name_are_not_one_class() -> None:
    # As when the cell of a notebook that defines the class is run again.
    def request() -> Any:
        return make_dataclass("Request", ["image"])(torch.zeros(1))

    spec, other = metadata(x=request()), metadata(x=request())
    reason = mismatch(other, GraphSpec("graph0", spec, spec, ForwardSignature(("x",))))
    assert "other classes than those of the graph" in str(reason)


def test_sizes_that_the_backend_takes_for_one_have_to_agree() -> None:
    seen = metadata(x=torch.zeros(2, 3), mask=torch.zeros(4, 5), flag=True)
    assert mismatch(seen, GRAPH) is None
    assert "the sizes batch0, dim0 differ" in str(mismatch(seen, GRAPH, [("batch0", "dim0")]))
    agreeing = metadata(x=torch.zeros(2, 3), mask=torch.zeros(4, 2), flag=True)
    assert mismatch(agreeing, GRAPH, [("batch0", "dim0")]) is None
