from pathlib import Path
from typing import Any

import pytest
import torch

from aitune.torch.module.forward_signature import ForwardSignature
from aitune.torch.module.sample_metadata import SampleMetadata
from aitune.torch.module.sample_store import SampleStore


def forward(x, y=None, options=None):
    return x


SIGNATURE = ForwardSignature.from_callable(forward)


def store_of(folder: Path, *calls: dict[str, Any], capacity: int = 8) -> SampleStore:
    store = SampleStore(folder, SIGNATURE, capacity)
    for named in calls:
        store.add(named, SampleMetadata.from_inputs(named, strict=True))
    return store


TENSORS = {
    "float": torch.randn(2, 3),
    "bf16": torch.randn(2, 3).bfloat16(),
    "float16": torch.randn(2).half(),
    "float64": torch.randn(2).double(),
    "int64": torch.arange(6).reshape(2, 3),
    "bool": torch.tensor([True, False]),
    "uint8": torch.arange(4, dtype=torch.uint8),
    "complex": torch.randn(2, dtype=torch.complex64),
    "zero dimensions": torch.tensor(3.5),
    "no elements": torch.zeros(0, 3),
    "transposed": torch.randn(3, 2).t(),
    "channels_last": torch.randn(1, 3, 4, 4).to(memory_format=torch.channels_last),
    "strided": torch.randn(8)[::2],
    "expanded": torch.randn(3, 1).expand(3, 4),
    "view with an offset": torch.randn(10)[3:7],
    "parameter": torch.nn.Parameter(torch.randn(2)),
    "requires grad": torch.randn(2, requires_grad=True),
}


@pytest.mark.parametrize("kind", TENSORS)
def test_every_kind_of_tensor_comes_back_as_it_was(kind: str, tmp_path: Path) -> None:
    tensor = TENSORS[kind]
    store = store_of(tmp_path / "s", {"x": tensor, "options": {"scale": 2, "also": [tensor]}})
    for _ in range(2):
        (sample,) = store
        x, options = sample.args[0], sample.kwargs["options"]
        assert x.dtype is tensor.dtype
        assert torch.equal(x, tensor)
        assert torch.equal(options["also"][0], tensor)
        assert options["scale"] == 2
        assert not x.requires_grad
        if kind in ("transposed", "channels_last"):
            assert x.stride() == tensor.stride()
        # Two arguments are never one object: an exporter would fuse them.
        assert x is not options["also"][0]
        if x.numel():
            assert x.data_ptr() != options["also"][0].data_ptr()


def test_inference_tensors_can_be_kept(tmp_path: Path) -> None:
    with torch.inference_mode():
        store = store_of(tmp_path / "s", {"x": torch.ones(2)})
    assert torch.equal(store[0].args[0], torch.ones(2))


def test_one_sample_a_shape_up_to_the_capacity(tmp_path: Path) -> None:
    store = store_of(
        tmp_path / "s", *({"x": torch.full((n,), float(k))} for k, n in enumerate((1, 1, 2, 3, 4))), capacity=3
    )
    assert [sample.args[0].tolist() for sample in store] == [[0.0], [2.0, 2.0], [3.0, 3.0, 3.0]]
    assert len(list((tmp_path / "s").iterdir())) == len(store) == 3
    assert store.wants(((9,),)) is False
    assert torch.equal(store[-1].args[0], store[1:][1].args[0])


def test_a_sample_is_a_copy_in_both_directions(tmp_path: Path) -> None:
    for tensor in (torch.zeros(2), torch.zeros(2, dtype=torch.complex64)):
        store = store_of(tmp_path / str(tensor.dtype), {"x": tensor})
        tensor.add_(1)
        store[0].args[0].add_(5)
        assert not store[0].args[0].any()


def test_calls_without_tensors_are_kept(tmp_path: Path) -> None:
    store = store_of(tmp_path / "s", {"x": 3, "y": None})
    assert store[0] == ((3, None), {})


def test_the_folder_goes_with_the_store(tmp_path: Path) -> None:
    store = store_of(tmp_path / "s", {"x": torch.zeros(1)})
    assert (tmp_path / "s").exists()
    del store
    assert not (tmp_path / "s").exists()
    store = store_of(tmp_path / "t", {"x": torch.zeros(1)})
    store.discard()
    assert len(store) == 0
    assert not (tmp_path / "t").exists()
