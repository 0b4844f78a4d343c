from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from aitune.exceptions import UnsupportedCallError
from aitune.torch.module.axis_inference import Observation, infer_input_axes, infer_output_axes
from aitune.torch.module.forward_signature import ForwardSignature
from aitune.torch.module.graph_spec import GraphSpec
from aitune.torch.module.sample import Sample
from aitune.torch.module.sample_metadata import SampleMetadata
from aitune.torch.module.tensor_spec import Axis, Symbol

HEADS = 3


def forward(x, options=None, *, scale=1.0):
    return {"y": x * scale, "heads": options["mask"]}


SIGNATURE = ForwardSignature.from_callable(forward)


def make_sample(batch_size: int, length: int) -> Sample:
    x = torch.arange(batch_size * length * 2, dtype=torch.float32).reshape(batch_size, length, 2)
    mask = torch.arange(batch_size * HEADS * length).reshape(batch_size * HEADS, length)
    return Sample((x, {"mask": mask, "bias": torch.tensor([0.5, 0.25])}), {"scale": 2.0})


def make_spec(samples: list[tuple[int, Sample]], name: str = "graph0") -> GraphSpec:
    named = [SIGNATURE.bind(*sample) for _, sample in samples]
    outputs = [forward(*sample.args, **sample.kwargs) for _, sample in samples]
    inputs = SampleMetadata.from_inputs(named[0], strict=True)
    output = SampleMetadata.from_outputs(outputs[0], strict=True)
    observations = [
        Observation(
            size,
            tuple(tuple(t.shape) for t in inputs.tensors_of(call)),
            tuple(tuple(t.shape) for t in output.tensors_of(result)),
        )
        for (size, _), call, result in zip(samples, named, outputs, strict=True)
    ]
    axes = infer_input_axes(inputs.tensor_specs, observations, {})
    output_axes = infer_output_axes(output.tensor_specs, observations, axes)
    return GraphSpec(name, inputs.with_axes(axes), output.with_axes(output_axes), SIGNATURE)


SPEC = make_spec([(1, make_sample(1, 4)), (2, make_sample(2, 7)), (2, make_sample(2, 5))])


def assert_same_call(one: Sample, other: Sample) -> None:
    left, right = SIGNATURE.bind(*one), SIGNATURE.bind(*other)
    assert SampleMetadata.from_inputs(left, strict=True) == SampleMetadata.from_inputs(right, strict=True)
    tensors = zip(SPEC.input_tensors(*one), SPEC.input_tensors(*other), strict=True)
    assert all(a.dtype == b.dtype and torch.equal(a, b) for a, b in tensors)


def test_the_axes_of_a_real_call() -> None:
    assert SPEC.describe() == (
        "x: float32[batch0, dim0, 2], options['mask']: int64[3*batch0, dim1], options['bias']: float32[2], "
        "scale = 2.0 -> y: float32[batch0, dim0, 2], heads: int64[3*batch0, dim0] "
        "(batch0 1..2, dim0 4..7, dim1 4..7)"
    )
    assert (SPEC.get_min_batch_size(), SPEC.get_max_batch_size(), SPEC.batching) == (1, 2, True)
    assert list(SPEC.symbols) == ["batch0", "dim0", "dim1"]


@given(st.integers(1, 4), st.integers(1, 5), st.integers(0, 6))
def test_a_larger_batch_trimmed_equals_the_original(batch_size: int, length: int, extra: int) -> None:
    sample = make_sample(batch_size, length)
    larger = SPEC.make_batch(*sample, batch_size + extra)
    assert SPEC.batch_size_of(larger) == batch_size + extra
    assert_same_call(SPEC.make_batch(*larger, batch_size), sample)


@given(st.integers(1, 4), st.integers(1, 5), st.integers(1, 9))
def test_rows_are_repeated_in_turn(batch_size: int, length: int, wanted: int) -> None:
    sample = make_sample(batch_size, length)
    x, options = SPEC.make_batch(*sample, wanted).args
    assert x.shape == (wanted, length, 2)
    assert options["mask"].shape == (wanted * HEADS, length)
    assert torch.equal(options["bias"], sample.args[1]["bias"])
    heads = options["mask"].reshape(wanted, HEADS, length)
    for row in range(wanted):
        assert torch.equal(x[row], sample.args[0][row % batch_size])
        assert torch.equal(heads[row], sample.args[1]["mask"].reshape(-1, HEADS, length)[row % batch_size])


@given(st.integers(1, 4), st.integers(1, 4), st.integers(1, 9), st.integers(1, 9))
def test_resize_sets_each_symbol_and_says_so(batch_size: int, length: int, x_length: int, mask_length: int) -> None:
    sizes = {"batch0": batch_size, "dim0": x_length, "dim1": mask_length}
    resized = SPEC.resize(make_sample(2, length), sizes)
    assert SPEC.symbol_sizes(resized) == sizes


def test_a_call_is_made_from_its_tensors_with_constants_and_names() -> None:
    sample = make_sample(2, 4)
    made = SPEC.make_call(SPEC.input_tensors(*sample))
    assert (len(made.args), list(made.kwargs), made.kwargs["scale"]) == (2, ["scale"], 2.0)
    assert_same_call(made, sample)


def test_keyword_and_positional_calls_give_the_same_tensors() -> None:
    sample = make_sample(2, 4)
    by_name = Sample((), {"scale": 2.0, "options": sample.args[1], "x": sample.args[0]})
    assert_same_call(by_name, sample)


def test_a_dict_in_another_order_gives_its_tensors_by_key() -> None:
    x, options = make_sample(2, 4).args
    turned = {"bias": options["bias"], "mask": options["mask"]}
    found = SPEC.input_tensors((x, turned), {"scale": 2.0})
    assert [tensor is wanted for tensor, wanted in zip(found, (x, options["mask"], options["bias"]), strict=True)] == [
        True
    ] * 3


def test_the_largest_batch_size_changes_in_inputs_and_outputs() -> None:
    spec = make_spec([(1, make_sample(1, 4)), (2, make_sample(2, 7)), (2, make_sample(2, 5))])
    spec.update_max_batch_size(make_sample(2, 4), 64)
    assert spec.get_max_batch_size() == 64
    assert [s.max_shape[0] for s in spec.input_spec.tensor_specs] == [64, 192, 2]
    assert [s.max_shape[0] for s in spec.output_spec.tensor_specs] == [64, 192]
    spec.update_max_batch_size(make_sample(2, 4), 0)
    assert spec.get_max_batch_size() == spec.get_min_batch_size() == 1
    with pytest.raises(UnsupportedCallError):
        spec.update_max_batch_size(Sample((), {"unknown": 1}), 2)


def single_input_spec(tensor: torch.Tensor, axes: tuple[Axis, ...]) -> GraphSpec:
    metadata = SampleMetadata.from_inputs({"x": tensor}).with_axes([axes])
    return GraphSpec("graph0", metadata, SampleMetadata.from_outputs(tensor), ForwardSignature(positional=("x",)))


def test_a_graph_without_a_batch_axis_has_batches_of_one() -> None:
    x = torch.ones(2, 3)
    spec = single_input_spec(x, (Axis(2), Axis(3)))
    assert (spec.batching, spec.get_min_batch_size(), spec.get_max_batch_size()) == (False, 1, 1)
    assert torch.equal(spec.make_batch((x,), {}, 8).args[0], x)
    assert spec.batch_size_of(Sample((x,), {})) == 1
    spec.update_max_batch_size(Sample((x,), {}), 8)
    assert spec.get_max_batch_size() == 1


def test_an_empty_axis_grows_with_zeros() -> None:
    x = torch.ones(2, 0, 3)
    spec = single_input_spec(x, (Axis(2), Axis(1, Symbol("past", 0, 8)), Axis(3)))
    grown = spec.resize(Sample((x,), {}), {"past": 4}).args[0]
    assert torch.equal(grown, torch.zeros(2, 4, 3))
    assert spec.resize(Sample((grown,), {}), {"past": 0}).args[0].shape == (2, 0, 3)


def test_one_tensor_given_twice_stays_two_arguments() -> None:
    def both(x: Any, y: Any) -> Any:
        return x + y

    x = torch.ones(2, 3)
    batch = Symbol("batch0", 1, 4, is_batch=True)
    inputs = SampleMetadata.from_inputs({"x": x, "y": x}).with_axes([(Axis(1, batch), Axis(3))] * 2)
    spec = GraphSpec("g", inputs, SampleMetadata.from_outputs(x), ForwardSignature.from_callable(both))
    grown = spec.make_batch((x, x), {}, 4)
    assert grown.args[0] is not grown.args[1]
    assert [tuple(argument.shape) for argument in grown.args] == [(4, 3), (4, 3)]


def test_the_given_sample_is_not_changed() -> None:
    sample = make_sample(2, 4)
    before = [tensor.clone() for tensor in SPEC.input_tensors(*sample)]
    SPEC.make_batch(*sample, 5).args[0].zero_()
    assert all(torch.equal(a, b) for a, b in zip(SPEC.input_tensors(*sample), before, strict=True))


def test_an_output_is_made_from_its_tensors() -> None:
    y, heads = torch.ones(1), torch.zeros(1)
    assert SPEC.make_output([y, heads]) == {"y": y, "heads": heads}
