from typing import Any

import pytest
import torch
from serving_fakes import call, record

from aitune.torch.module.output_aliases import describe_shared_outputs, shared_outputs

X = torch.arange(12.0).reshape(3, 4)


class Sharing(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)
        self.table = torch.zeros(4)
        self.register_buffer("scale", torch.ones(4))

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"weight": self.linear.weight[0], "scale": self.scale, "table": self.table.view(2, 2), "y": x * 2}


@pytest.mark.parametrize(
    ("output", "said"),
    [
        (X, ["output shares the memory of argument x"]),
        (X.t(), ["output shares the memory of argument x"]),
        ([X[1:], X * 2], ["output[0] shares the memory of argument x"]),
        (X.view(torch.int32), ["output shares the memory of argument x"]),
        (X * 2, []), (X.clone(), []), (torch.zeros(0), []), (torch.zeros(2, 2).to_sparse(), []), ("text", []),
    ],
)  # fmt: skip
def test_an_output_that_is_or_looks_into_an_input_is_named(output: Any, said: list[str]) -> None:
    assert shared_outputs(output, {"x": X}) == said


def test_outputs_that_share_memory_with_each_other_are_named() -> None:
    whole = X * 2
    assert shared_outputs({"a": whole, "b": whole}, {}) == ["b shares the memory of a"]
    assert shared_outputs({"a": whole, "b": whole[:, 1:]}, {}) == ["b shares the memory of a"]
    assert shared_outputs(list(whole.chunk(2, dim=1)), {}) == []
    assert shared_outputs(list(whole.chunk(3, dim=0)), {}) == []
    assert shared_outputs([whole[:, :3], whole[:, 2:]], {}) == ["output[1] shares the memory of output[0]"]


def test_outputs_that_are_weights_are_named_when_recorded() -> None:
    wrapped = record(Sharing(), call(X))
    (said,) = wrapped.recording_problems
    for pair in ("weight shares the memory of weight linear.weight", "scale shares the memory of weight scale"):
        assert pair in said
    assert "table shares the memory of weight table: a backend may return a copy" in said
    assert len(wrapped.graph_specs) == 1


def test_many_shared_outputs_are_counted() -> None:
    text = str(describe_shared_outputs([X] * 6, {"x": X}))
    assert "output[2] shares the memory of argument x and 3 more: a backend may return a copy" in text
    assert describe_shared_outputs([X * 2], {"x": X}) is None
