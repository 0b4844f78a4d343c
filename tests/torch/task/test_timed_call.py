from collections import OrderedDict

import pytest
import torch

from aitune.testing.simulated_machine import SimulatedMachine
from aitune.torch.module.sample import Sample
from aitune.torch.task.timed_call import CudaTimer, HostTimer, TimedCall, copy_sample, timer_for


def test_a_group_is_timed_as_one():
    machine = SimulatedMachine()
    call = TimedCall(machine.callable(1e-3), Sample((), {}), HostTimer(machine))
    assert call.time() == 1_000_000
    assert call.time(5) == 5_000_000


def test_no_time_at_all_is_one_nanosecond():
    machine = SimulatedMachine()
    assert TimedCall(lambda: None, Sample((), {}), HostTimer(machine)).time() == 1


@pytest.mark.parametrize(
    ("call_ns", "copy_inputs", "group"),
    [(50_000, False, 1), (49_000, False, 5), (1_000, False, 200), (1, False, 1000), (1, True, 100), (1e9, False, 1)],
)
def test_group_sizes(call_ns, copy_inputs, group):
    call = TimedCall(lambda: None, Sample((), {}), HostTimer(SimulatedMachine()), copy_inputs)
    assert call.group_size(call_ns) == group


def test_a_copy_is_equal_and_apart():
    x = torch.arange(6.0).reshape(2, 3).t()
    sample = Sample((x, [x, 3]), {"options": OrderedDict(mask=torch.ones(2, dtype=torch.bool), name="n")})
    copied = copy_sample(sample)
    assert torch.equal(copied.args[0], x)
    assert copied.args[0].stride() == x.stride()
    assert copied.args[0].data_ptr() != x.data_ptr()
    assert copied.args[1][1] == 3
    assert isinstance(copied.kwargs["options"], OrderedDict)
    assert copied.kwargs["options"]["name"] == "n"
    copied.kwargs["options"]["mask"].zero_()
    assert sample.kwargs["options"]["mask"].all()


def test_one_tensor_given_twice_stays_one_tensor():
    x = torch.zeros(2)
    copied = copy_sample(Sample((x,), {"again": x, "other": torch.zeros(2)}))
    assert copied.args[0] is copied.kwargs["again"]
    assert copied.args[0] is not copied.kwargs["other"]


def test_requires_grad_is_kept():
    copied = copy_sample(Sample((torch.zeros(1, requires_grad=True), torch.zeros(1)), {}))
    assert [tensor.requires_grad for tensor in copied.args] == [True, False]
    assert copied.args[0].is_leaf


def test_the_timer_fits_the_device():
    machine = SimulatedMachine()
    assert isinstance(timer_for("cpu", machine), HostTimer)
    assert isinstance(timer_for("cuda:0", machine), CudaTimer)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_cuda_events_see_the_work_that_a_call_queues():
    x = torch.randn(4096, 4096, device="cuda")
    call = TimedCall(lambda value: value @ value, Sample((x,), {}), timer_for("cuda", SimulatedMachine()))
    call.time(3)
    assert call.time(8) > 3 * call.time(1)
