"""Changes that leave no trace in objects and counters, and weights where torch does not look for them."""

from collections.abc import Callable

import pytest
import torch

from aitune.torch.module.interception import Interception
from aitune.torch.module.weight_watch import WeightWatch


class Hiding(torch.nn.Module):
    """Keeps layers and tensors where torch does not look for them."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = [torch.nn.Linear(3, 3), {"deep": torch.nn.Linear(3, 3)}]
        self.activation = torch.nn.ReLU()
        self.table = torch.arange(300.0)
        self.tables = {"short": [torch.ones(3)]}
        self.register_buffer("scale", torch.ones(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x


def hidden_layer_written(model: Hiding) -> None:
    with torch.no_grad():
        model.layers[0].weight.mul_(2)  # type: ignore[union-attr, operator]


def hidden_layer_loaded(model: Hiding) -> None:
    model.layers[1]["deep"].load_state_dict(torch.nn.Linear(3, 3).state_dict())  # type: ignore[index, operator]


@pytest.mark.parametrize("change", [hidden_layer_written, hidden_layer_loaded])
def test_weights_of_layers_in_plain_containers_are_seen_at_the_next_look(change: Callable[[Hiding], None]) -> None:
    model = Hiding()
    watch = WeightWatch(model)
    change(model)
    assert str(watch.changed()).startswith("layers[")
    assert str(watch.refresh()).startswith("layers[")


def hidden_layer_replaced(model: Hiding) -> None:
    model.layers[0] = torch.nn.Linear(3, 3)


def hidden_layer_added(model: Hiding) -> None:
    model.layers.append(torch.nn.Linear(3, 3))


def forward_replaced(model: Hiding) -> None:
    model.activation.forward = lambda x: x  # type: ignore[method-assign]


def class_replaced(model: Hiding) -> None:
    model.activation.__class__ = torch.nn.Tanh


def own_class_replaced(model: Hiding) -> None:
    model.__class__ = type("Other", (Hiding,), {})


def plain_tensor_written(model: Hiding) -> None:
    model.table.mul_(2)


def plain_tensor_replaced(model: Hiding) -> None:
    model.table = torch.zeros(300)


def plain_tensor_in_a_container_written(model: Hiding) -> None:
    model.tables["short"][0].zero_()


def plain_tensor_removed(model: Hiding) -> None:
    del model.table


def bias_given_another_memory(model: Hiding) -> None:
    model.layers[0].bias.data = torch.zeros(3)  # type: ignore[union-attr]


def buffer_given_another_memory(model: Hiding) -> None:
    model.scale.data = torch.zeros(3)  # type: ignore[assignment]


def buffer_written_through_data(model: Hiding) -> None:
    model.scale.data.zero_()  # type: ignore[operator]


@pytest.mark.parametrize(
    "change",
    [
        hidden_layer_replaced, hidden_layer_added, forward_replaced, class_replaced, own_class_replaced,
        plain_tensor_written, plain_tensor_replaced, plain_tensor_in_a_container_written, plain_tensor_removed,
        bias_given_another_memory, buffer_given_another_memory, buffer_written_through_data,
    ],
)  # fmt: skip
def test_what_leaves_no_trace_is_seen_after_the_interval_and_by_a_refresh_at_once(
    change: Callable[[Hiding], None],
) -> None:
    model = Hiding()
    watch, later = WeightWatch(model, 0.0), WeightWatch(model, 3600.0)
    assert [watch.changed(), watch.refresh(), watch.changed(), later.refresh()] == [None] * 4
    change(model)
    assert watch.changed() is not None
    assert later.changed() is None
    assert later.refresh() is not None


def test_other_memory_with_other_values_is_seen_wherever_they_differ() -> None:
    model = torch.nn.Linear(100, 100)
    watch = WeightWatch(model, 0.0)
    model.weight.data = model.weight.detach().clone()
    assert [watch.changed(), watch.changed()] == ["weight"] * 2  # as .to() does it
    assert watch.refresh() is None
    model = torch.nn.Linear(2, 1000)
    watch = WeightWatch(model, 0.0)
    values = model.bias.detach().clone()
    values[1] += 1
    model.bias.data = values
    assert watch.changed() == "bias"


def test_a_table_made_for_other_sizes_is_no_change() -> None:
    model = Hiding()
    watch = WeightWatch(model, 0.0)
    model.table = torch.arange(400.0)
    assert [watch.changed(), watch.changed()] == [None, None]
    model.table = torch.arange(300.0)
    assert [watch.changed(), watch.refresh()] == [None, None]


def test_a_part_that_is_wrapped_later_has_the_forward_that_it_had() -> None:
    model = Hiding()
    watch = WeightWatch(model, 0.0)
    interception = Interception(model.activation)
    assert [watch.changed(), watch.changed()] == [None, None]
    interception.remove()
    assert watch.changed() is None
