import pytest
import torch

from aitune.exceptions import InferenceError
from aitune.torch.task.memory import is_out_of_memory, release_memory


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB"),
        RuntimeError("[enforce fail at alloc_cpu.cpp] DefaultCPUAllocator: can't allocate memory: you tried to ..."),
        RuntimeError("Failed to allocate memory for requested buffer of size 1024"),
        Exception("std::bad_alloc"),
    ],
    ids=str,
)
def test_memory_that_ran_out_is_recognised(error):
    assert is_out_of_memory(error)


def test_a_real_allocation_that_is_too_large():
    with pytest.raises(RuntimeError) as caught:
        torch.empty(2**50, dtype=torch.uint8)
    assert is_out_of_memory(caught.value)


def test_the_cause_counts_too():
    error = InferenceError("the backend failed")
    assert not is_out_of_memory(error)
    error.__cause__ = MemoryError()
    assert is_out_of_memory(error)


@pytest.mark.parametrize(
    "error", [RuntimeError("shape mismatch"), ValueError("memory format"), KeyError("out of memory")], ids=str
)
def test_other_errors_are_not_taken_for_it(error):
    assert not is_out_of_memory(error)


def test_release_memory_does_no_harm_without_an_accelerator():
    release_memory()
    assert torch.zeros(1).item() == 0.0
