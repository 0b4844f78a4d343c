from __future__ import annotations

import hashlib
from collections.abc import Callable

import pytest
import torch

from aitune.torch.module.tensor_digests import TensorDigests, bytes_in_line, digest_of, has_plain_values

VALUES = torch.arange(24.0).reshape(2, 3, 4)


@pytest.mark.parametrize(
    "tensor",
    [
        VALUES,
        torch.nn.Parameter(VALUES),
        VALUES.to(torch.bfloat16).float(),
        VALUES.permute(2, 0, 1).contiguous().permute(1, 2, 0),
        torch.stack([VALUES, VALUES], -1)[..., 0],
        -torch._neg_view(-VALUES).neg(),
    ],
)
def test_equal_values_have_one_hash_however_they_lie_in_memory(tensor: torch.Tensor) -> None:
    assert digest_of(tensor) == hashlib.sha256(VALUES.numpy().tobytes()).hexdigest()


@pytest.mark.parametrize("tensor", [torch.zeros(0), torch.tensor(3), torch.zeros(2, dtype=torch.complex64).conj()])
def test_odd_tensors_have_a_hash(tensor: torch.Tensor) -> None:
    assert digest_of(tensor) == hashlib.sha256(tensor.resolve_conj().numpy().tobytes()).hexdigest()


@pytest.mark.parametrize("view", [torch.conj, torch._neg_view, torch.t], ids=["conjugate", "negative", "transposed"])
def test_the_bytes_of_a_view_are_those_of_its_values(view: Callable[[torch.Tensor], torch.Tensor]) -> None:
    tensor = view(torch.complex(VALUES[0], VALUES[1]))
    read = bytes_in_line(tensor).view(tensor.dtype).reshape(tensor.shape)
    assert torch.equal(read, tensor.resolve_conj().resolve_neg())


@pytest.mark.parametrize("tensor", [VALUES.to_sparse(), VALUES.to("meta"), torch.nn.Linear(2, 2, device="meta").weight])
def test_what_has_no_plain_values_has_none(tensor: torch.Tensor) -> None:
    assert not has_plain_values(tensor)
    assert digest_of(tensor) is None


def test_a_tensor_is_hashed_once_and_another_one_of_the_same_identity_never_stands_for_it() -> None:
    digests, tensor = TensorDigests(), torch.zeros(1000)
    digests.start([tensor])
    before, ones = digest_of(tensor), torch.ones(2)
    assert digests.of([tensor, ones, tensor]) == [before, digest_of(ones), before]
    tensor.add_(1)
    assert digests.of([tensor]) == [before]
    assert TensorDigests().of([tensor]) == [digest_of(tensor)] != [before]
    # Those that nobody else holds are kept, so their identities are not given to others.
    seen = digests.of([torch.full((3,), float(number)) for number in range(50)])
    assert len(set(seen)) == 50
