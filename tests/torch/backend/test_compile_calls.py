from typing import Any

import pytest
import torch

from aitune.torch.backend.compile_calls import call_maker
from aitune.torch.module.forward_signature import ForwardSignature
from aitune.torch.module.graph_spec import GraphSpec
from aitune.torch.module.sample_metadata import SampleMetadata

X, Y = torch.ones(2), torch.zeros(2)


def spec_of(**inputs: Any) -> GraphSpec:
    metadata = SampleMetadata.from_inputs(inputs, strict=True)
    return GraphSpec("graph0", metadata, metadata, ForwardSignature(positional=tuple(inputs)))


@pytest.mark.parametrize("inputs", [{"x": X, "n": 3, "y": Y}, {"x": [X, Y]}, {"x": {"k": X}, "y": (Y, None)}])
def test_a_fast_call_is_the_call_of_the_graph(inputs: dict[str, Any]) -> None:
    spec = spec_of(**inputs)
    tensors = [torch.randn(2), torch.randn(2)]
    made, expected = call_maker(spec)(tensors), spec.make_call(tensors)
    assert str(made) == str(expected)
    assert spec.input_tensors(*made)[0] is tensors[0]


def test_a_container_that_looks_at_what_it_is_made_of_gets_tensors() -> None:
    transformers = pytest.importorskip("transformers")
    cache = transformers.DynamicCache()
    cache.update(torch.ones(1, 1, 2, 4), torch.ones(1, 1, 2, 4), 0)
    spec = spec_of(x=X, cache=cache)
    made = call_maker(spec)([Y, torch.zeros(1, 1, 3, 4), torch.ones(1, 1, 3, 4)])
    assert made.args[0] is Y
    assert made.args[1].get_seq_length() == 3
