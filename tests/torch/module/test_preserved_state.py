import threading
from collections import Counter, OrderedDict, defaultdict, deque

import pytest
import torch
from correctness_models import seeded
from torch import nn

from aitune.exceptions import AITuneUserInputError
from aitune.torch.module.preserved_state import preserved_random_state, preserved_state
from aitune.torch.module.weight_watch import WeightWatch


class Stateful(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(2, 2)
        self.register_buffer("calls", torch.zeros(()))
        self.register_buffer("rebound", torch.zeros(2))
        self.register_buffer("grown", torch.zeros(1))
        self.plain = torch.zeros(2)
        self.number = 0
        self.history = []
        self.cache = {}
        self.seen = set()
        self.generator = torch.Generator().manual_seed(3)
        self.lock = threading.Lock()

    def forward(self, x):
        self.calls += 1
        self.rebound = self.rebound + 1
        self.grown.resize_(5)
        self.plain.add_(1)
        self.number += 1
        self.history.append(x)
        self.cache["x"] = x
        self.seen.add(1)
        self.added = x
        torch.rand(1, generator=self.generator)
        return self.linear(x) + torch.rand(1)


def test_everything_is_put_back():
    module = Stateful()
    rebound = module.rebound
    torch.manual_seed(5)
    before = torch.get_rng_state()
    generator = module.generator.get_state()
    with preserved_state(module) as changes:
        module(torch.ones(1, 2))
        module.train(not module.training)
        assert module.calls.item() == 1
    assert module.calls.item() == 0
    assert module.rebound is rebound
    assert torch.equal(module.rebound, torch.zeros(2))
    assert module.grown.shape == (1,)
    assert torch.equal(module.plain, torch.zeros(2))
    assert (module.number, module.history, module.cache, module.seen) == (0, [], {}, set())
    assert not hasattr(module, "added")
    assert module.training
    assert module.linear.training
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(module.generator.get_state(), generator)
    assert set(changes.buffers) == {"calls", "rebound", "grown"}


def test_put_back_also_after_an_exception():
    module = Stateful()
    module.eval()

    def fail():
        with preserved_state(module):
            module(torch.ones(1, 2))
            module.train()
            raise KeyError("from the block")

    with pytest.raises(KeyError, match="from the block"):
        fail()
    assert module.calls.item() == 0
    assert not module.training


def test_a_forward_without_state_changes_nothing_and_writes_nothing():
    module = seeded(lambda: nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3)))
    versions = [buffer._version for buffer in module.buffers()]
    with preserved_state(module) as changes:
        module(torch.ones(2, 3))
    assert changes.buffers == ()
    # Writing equal values back would look like new weights to whoever watches the version counters.
    assert [buffer._version for buffer in module.buffers()] == versions


def test_statistics_of_a_training_forward_are_put_back():
    module = nn.BatchNorm1d(3).train()
    with preserved_state(module) as changes:
        module(torch.randn(8, 3))
    assert torch.equal(module.running_mean, torch.zeros(3))
    assert module.num_batches_tracked.item() == 0
    assert "running_mean" in changes.buffers


def test_nan_in_a_buffer_is_not_taken_for_a_change():
    module = nn.Module()
    module.register_buffer("values", torch.tensor([float("nan"), 1.0]))
    version = module.values._version
    with preserved_state(module) as changes:
        pass
    assert changes.buffers == ()
    assert module.values._version == version


def test_a_parameter_changed_in_place_is_an_error_that_names_it():
    module = nn.Sequential(nn.Linear(2, 2))
    weight = module[0].weight
    said = r"'0\.weight'.*register_buffer"
    with pytest.raises(AITuneUserInputError, match=said), preserved_state(module), torch.no_grad():
        weight.add_(1)


def test_a_parameter_changed_in_place_does_not_hide_the_first_error():
    module = nn.Linear(2, 2)

    def fail():
        with preserved_state(module), torch.no_grad():
            module.weight.add_(1)
            raise KeyError("first")

    with pytest.raises(KeyError, match="first"):
        fail()


def test_a_buffer_made_under_inference_mode_is_put_back():
    with torch.inference_mode():
        values = torch.zeros(2)
    module = nn.Module()
    module.register_buffer("values", values)
    with preserved_state(module) as changes, torch.inference_mode():
        module.values.add_(1)
    assert module.values.tolist() == [0.0, 0.0]
    assert changes.buffers == ("values",)


def test_parameters_are_not_copied():
    module = nn.Linear(2, 2)
    pointer = module.weight.data_ptr()
    with preserved_state(module):
        pass
    assert module.weight.data_ptr() == pointer


def test_random_state_is_put_back():
    torch.manual_seed(1)
    expected = torch.rand(3)
    torch.manual_seed(1)
    with preserved_random_state():
        torch.rand(100)
    assert torch.equal(torch.rand(3), expected)


@pytest.mark.parametrize(
    "make",
    [lambda: [1, 2], lambda: {"a": 1}, lambda: {1}, lambda: OrderedDict(a=1), lambda: Counter("aab"),
     lambda: defaultdict(list, a=1), lambda: deque([1, 2], maxlen=2)],
    ids=["list", "dict", "set", "OrderedDict", "Counter", "defaultdict", "deque"],
)  # fmt: skip
def test_what_a_container_holds_is_put_back(make):
    module = nn.Linear(2, 2)
    module.kept = kept = make()
    with preserved_state(module):
        kept.clear()
        if isinstance(kept, dict):
            kept["b"] = 2
        assert kept != make()
    assert module.kept is kept
    assert kept == make()
    assert getattr(kept, "maxlen", 2) == 2


@pytest.mark.parametrize("dtype", [torch.qint8, torch.quint8])
def test_quantised_values_are_put_back(dtype):
    module = nn.Module()
    module.register_buffer("table", torch.quantize_per_tensor(torch.zeros(2), 0.5, 0, dtype))
    with preserved_state(module) as changes:
        module.table.copy_(torch.ones(2))
    assert changes.buffers == ("table",)
    assert module.table.dequantize().tolist() == [0.0, 0.0]


@pytest.mark.parametrize("place", ["buffer", "plain attribute"])
@pytest.mark.parametrize(
    "make",
    [
        torch.Tensor.to_sparse,
        torch.Tensor.to_sparse_csr,
        lambda eye: eye.to(torch.complex32),
        lambda eye: torch.nested.nested_tensor([eye, eye[:1]]),
        lambda eye: eye.to("meta"),
        lambda eye: eye.to(torch.uint8).view(torch.float4_e2m1fn_x2),
        lambda eye: torch.empty(2, dtype=torch.int4),
    ],
    ids=["coo", "csr", "complex32", "nested", "meta", "float4", "int4"],
)
def test_tensors_that_cannot_be_compared_are_no_hindrance(make, place):
    tensor = make(torch.eye(2))
    module = nn.Linear(2, 2)
    if place == "buffer":
        module.register_buffer("odd", tensor)
    else:
        module.odd = [tensor]
    with preserved_state(module) as changes:
        module(torch.ones(1, 2))
    assert changes.buffers == ()
    # The weights are watched while it serves, too.
    watch = WeightWatch(module, interval=0.0)
    assert (watch.changed(), watch.refresh()) == (None, None)
