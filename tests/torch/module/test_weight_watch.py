import threading
from collections.abc import Callable

import pytest
import torch

from aitune.torch.module.weight_watch import WeightWatch


class Model(torch.nn.Module):
    scale: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Linear(3, 3)
        self.rest = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.ReLU())
        self.register_buffer("scale", torch.ones(3))
        self.register_parameter("absent", None)


def assign(model: Model) -> None:
    model.first.weight = torch.nn.Parameter(model.first.weight.detach().clone())


def in_place(model: Model) -> None:
    with torch.no_grad():
        model.first.weight.add_(1)


def load(model: Model) -> None:
    model.load_state_dict(Model().state_dict())


def load_assigned(model: Model) -> None:
    model.load_state_dict(Model().state_dict(), assign=True)


def precision_lost(model: Model) -> None:
    model.half().float()


def part_moved(model: Model) -> None:
    model.rest[0].double()


def buffer_written(model: Model) -> None:
    model.scale.mul_(2)


def buffer_assigned(model: Model) -> None:
    model.scale = torch.zeros(3)


def layer_replaced(model: Model) -> None:
    model.rest[0] = torch.nn.Linear(3, 2)


def layer_without_weights_replaced(model: Model) -> None:
    model.rest[1] = torch.nn.Tanh()


def layer_appended(model: Model) -> None:
    model.rest.append(torch.nn.ReLU())


def layer_removed(model: Model) -> None:
    del model.rest[1]


def optional_given(model: Model) -> None:
    model.absent = torch.nn.Parameter(torch.ones(1))


def parametrized(model: Model) -> None:
    torch.nn.utils.parametrizations.weight_norm(model.first)


def optimised(model: Model) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model.first(torch.ones(1, 3)).sum().backward()
    optimizer.step()


CHANGES = [
    assign, in_place, load, load_assigned, precision_lost, part_moved, buffer_written, buffer_assigned, layer_replaced,
    layer_without_weights_replaced, layer_appended, layer_removed, optional_given, parametrized, optimised,
]  # fmt: skip


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_every_change_is_seen_at_the_next_look(change: Callable[[Model], None]) -> None:
    model = Model()
    watch, sampled = WeightWatch(model), WeightWatch(model, 3600.0)
    assert watch.changed() is None
    change(model)
    assert watch.changed() is not None
    assert watch.refresh() is not None
    # The same values in another object are accepted: what is loaded again ends nothing.
    assert (sampled.refresh() is None) == (change is assign)
    assert WeightWatch(model).changed() is None


def test_the_change_is_named() -> None:
    model = Model()
    watch = WeightWatch(model)
    in_place(model)
    assert watch.changed() == "first.weight"
    watch = WeightWatch(model)
    layer_replaced(model)
    assert watch.changed() == "rest.0.weight"


def test_reading_training_and_running_are_no_changes() -> None:
    model = Model().eval()
    watch = WeightWatch(model, 0.0)
    model.train().eval().requires_grad_(False)
    model.to("cpu", torch.float32)
    model.first(torch.ones(1, 3))
    _ = model.state_dict(), [*model.named_parameters()]
    assert watch.changed() is None


def test_modes_and_removed_hooks_of_parts_are_changes() -> None:
    model = Model().eval()
    handle = model.first.register_forward_hook(lambda *_: None)
    watch = WeightWatch(model)
    model.first.train()
    assert watch.changed() == "the mode of first"
    model.first.eval()
    assert watch.changed() is None
    handle.remove()
    assert watch.changed() == "a submodule or a hook of one"


def test_weights_that_are_swapped_and_put_back_count_while_they_are_swapped() -> None:
    model = torch.nn.Linear(3, 3)
    watch = WeightWatch(model)
    seen = []
    model.register_forward_hook(lambda *_: seen.append(watch.changed()))
    torch.func.functional_call(model, {"weight": torch.zeros(3, 3)}, (torch.ones(1, 3),))
    assert seen == ["weight"]
    assert watch.changed() is None


WRITES = {
    "all": lambda weight: weight.data.mul_(2),
    "copied": lambda weight: weight.data.copy_(torch.zeros_like(weight)),
    "not a number": lambda weight: weight.data.fill_(float("nan")),
}


@pytest.mark.parametrize("write", WRITES)
def test_writes_through_data_are_found_by_their_values(write: str) -> None:
    model = Model()
    unsampled, watch = WeightWatch(model), WeightWatch(model, 0.0)
    WRITES[write](model.first.weight)
    assert unsampled.changed() is None
    watch.changed()
    assert watch.changed() == "first.weight"


def test_values_are_compared_no_more_often_than_the_interval() -> None:
    model = Model()
    watch = WeightWatch(model, 3600.0)
    model.first.weight.data.mul_(2)
    assert [watch.changed() for _ in range(100)] == [None] * 100
    assert watch.refresh() == "first.weight"
    assert watch.changed() == "first.weight"


def test_a_refresh_sees_a_single_value_and_accepts_the_same_values_again() -> None:
    model = torch.nn.Linear(100, 100)
    watch = WeightWatch(model, 3600.0)
    before = model.weight[37, 41].item()
    model.weight.data[37, 41] = 7.0
    assert watch.refresh() == "weight"
    model.weight.data[37, 41] = before
    assert watch.refresh() is None
    assert watch.changed() is None
    model.load_state_dict({name: value.clone() for name, value in model.state_dict().items()})
    assert watch.changed() == "weight"
    assert watch.refresh() is None
    assert watch.changed() is None


@pytest.mark.parametrize(
    "tensor",
    [
        torch.zeros(2, dtype=torch.bfloat16), torch.zeros((), dtype=torch.bool), torch.zeros(0),
        torch.zeros(2, dtype=torch.complex64),
        torch.zeros(2, 3).t(), torch.zeros(1, 3, 2, 2).to(memory_format=torch.channels_last), torch.zeros(1).expand(4),
        torch.zeros(2, 2).to_sparse(), torch.quantize_per_tensor(torch.zeros(2), 0.1, 0, torch.quint8),
        torch.empty(2, device="meta"),
    ],
    ids=["bf16", "bool", "empty", "complex", "transposed", "channels_last", "expanded", "sparse", "quantised", "meta"],
)  # fmt: skip
def test_any_tensor_can_be_watched(tensor: torch.Tensor) -> None:
    model = torch.nn.Module()
    model.register_buffer("held", tensor)
    watch = WeightWatch(model, 0.0)
    assert [watch.changed(), watch.refresh(), watch.changed()] == [None] * 3
    model.held = tensor.clone()
    assert watch.changed() == "held"


def test_hooks_of_every_module_that_are_removed_are_a_change() -> None:
    handle = torch.nn.modules.module.register_module_forward_hook(lambda *_: None)
    try:
        watch, alone = WeightWatch(Model()), WeightWatch(torch.nn.Linear(2, 2))
        assert watch.changed() is None
    finally:
        handle.remove()
    assert watch.changed() is not None
    assert alone.changed() is None


def test_inference_tensors_are_watched_by_their_values() -> None:
    with torch.inference_mode():
        model = torch.nn.Linear(2, 2)
    watch = WeightWatch(model, 0.0)
    assert watch.changed() is None
    with torch.inference_mode():
        model.weight.add_(1)
    watch.changed()
    assert watch.changed() == "weight"


@pytest.mark.parametrize("size", [(), (1,), (0,), (2,)])
def test_a_tensor_that_is_replaced_by_an_equal_one_is_another(size: tuple[int, ...]) -> None:
    model = torch.nn.BatchNorm1d(3)
    model.register_buffer("extra", torch.ones(size))
    watch = WeightWatch(model)
    assert watch.changed() is None
    model.extra = torch.ones(size)
    assert watch.changed() == "extra"


def test_scripted_parts_are_watched() -> None:
    model = torch.nn.Sequential(torch.jit.script(torch.nn.Linear(3, 2)))
    watch = WeightWatch(model, 0.0)
    assert watch.changed() is None
    with torch.no_grad():
        model[0].weight.add_(1)
    assert watch.changed() == "0.weight"


def test_a_module_without_parts_has_nothing_to_watch() -> None:
    assert WeightWatch(torch.nn.ReLU()).is_empty
    assert not WeightWatch(Model()).is_empty


def test_looking_while_another_thread_changes_the_module_never_raises() -> None:
    model = Model()
    watch = WeightWatch(model, 0.0)
    stop = threading.Event()

    def change() -> None:
        while not stop.is_set():
            model.rest.add_module("more", torch.nn.ReLU())
            del model.rest.more

    thread = threading.Thread(target=change)
    thread.start()
    try:
        for _ in range(3000):
            watch.changed()
    finally:
        stop.set()
        thread.join()
    assert watch.changed() is None
