from __future__ import annotations

import copy
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import nn

from aitune.exceptions import ExportError
from aitune.testing.graphs import call, record_graph
from aitune.testing.tiny_models import CallCounter, InputChanger, TinyMLP, seeded, tiny_encoder, tiny_encoder_call
from aitune.torch.backend.export import export_graph, make_example, shared_exports
from aitune.torch.dynamic_shapes import BatchDim, DynamicDim
from aitune.torch.module.sample import Sample

CPU = torch.device("cpu")


def export(module: nn.Module, calls: Sequence[Sample], **options: Any) -> Any:
    graph_spec, data = record_graph(module, calls, **options)
    return graph_spec, export_graph(module, graph_spec, data, CPU)


def answers(exported: Any, graph_spec: Any, sample: Sample) -> Any:
    tensors = graph_spec.input_tensors(*sample)
    return graph_spec.make_output(exported.program.module()(*tensors))


class TwoLengths(nn.Module):
    """Two inputs whose lengths need not agree."""

    def forward(self, left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        return left.sum(1) + right.sum(1)


@pytest.mark.parametrize("lengths", [(3, 6), (1, 6)], ids=["from 3", "from 1"])
def test_lengths_that_must_agree_are_merged(lengths: tuple[int, int]) -> None:
    module = tiny_encoder()
    graph_spec, exported = export(module, [tiny_encoder_call(1, lengths[0]), tiny_encoder_call(4, lengths[1])])
    assert exported.equal_symbols == (("dim0", "dim1"),)
    for sizes in ((1, lengths[0]), (4, lengths[1]), (2, 5), (3, lengths[0])):
        sample = tiny_encoder_call(*sizes)
        expected = module(*sample.args, **sample.kwargs)
        torch.testing.assert_close(answers(exported, graph_spec, sample), expected)


@pytest.mark.parametrize("least", [1, 3])
def test_lengths_that_agreed_by_chance_stay_two(least: int) -> None:
    module = TwoLengths()
    calls = [call(torch.rand(b, n), torch.rand(b, n)) for b, n in ((1, least), (2, 7))]
    graph_spec, exported = export(module, calls)
    assert exported.equal_symbols == ()
    other = call(torch.rand(2, least), torch.rand(2, 5))
    torch.testing.assert_close(answers(exported, graph_spec, other), module(*other.args))


def test_batch_axis_with_a_factor_works_from_one_to_the_end() -> None:
    class Crops(nn.Module):
        def forward(self, image: torch.Tensor, crops: torch.Tensor) -> torch.Tensor:
            return image + crops.view(image.shape[0], 3, -1).sum(1)

    module = Crops()
    graph_spec, exported = export(module, [call(torch.rand(b, 4), torch.rand(3 * b, 4)) for b in (1, 5)])
    assert graph_spec.input_spec.tensor_specs[1].axes[0].size == 3
    for batch in (1, 2, 5):
        sample = call(torch.rand(batch, 4), torch.rand(3 * batch, 4))
        torch.testing.assert_close(answers(exported, graph_spec, sample), module(*sample.args))


def test_names_of_the_user_need_not_be_identifiers() -> None:
    shapes = {"x": (BatchDim("my batch", 1, 6), 8)}
    graph_spec, exported = export(seeded(TinyMLP), [call(torch.rand(2, 8))], dynamic_shapes=shapes)
    assert answers(exported, graph_spec, call(torch.rand(6, 8))).shape == (6, 4)


def test_axis_that_the_module_fixes_is_refused_by_its_name() -> None:
    class Fixed(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.view(4, 8)

    shapes = {"x": (BatchDim("rows", 2, 6), 8)}
    with pytest.raises(ExportError, match="rows"):
        export(Fixed(), [call(torch.rand(4, 8))], dynamic_shapes=shapes)


def test_branch_on_values_is_refused() -> None:
    class Branch(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x if x.sum() > 0 else -x

    with pytest.raises(ExportError, match=r"torch\.export refused the module"):
        export(Branch(), [call(torch.rand(2, 3))])


def test_branch_on_a_size_inside_the_range_is_refused() -> None:
    class Branch(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * 2 if x.shape[0] > 3 else x

    with pytest.raises(ExportError):
        export(Branch(), [call(torch.rand(1, 3)), call(torch.rand(6, 3))])


def test_number_computed_from_the_sizes_is_refused() -> None:
    class Counts(nn.Module):
        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, int]:
            return x * 2, x.shape[0]

    with pytest.raises(ExportError, match="computed from the sizes"):
        export(Counts(), [call(torch.rand(2, 3)), call(torch.rand(4, 3))])


def test_dataclass_outputs_keep_their_type() -> None:
    @dataclass
    class Answer:
        value: torch.Tensor
        note: str

    class Answers(nn.Module):
        def forward(self, x: torch.Tensor) -> Answer:
            return Answer(x + 1, "fine")

    graph_spec, exported = export(Answers(), [call(torch.rand(2, 3))])
    answer = answers(exported, graph_spec, call(torch.zeros(2, 3)))
    assert isinstance(answer, Answer)
    assert torch.equal(answer.value, torch.ones(2, 3))
    assert answer.note == "fine"


def test_one_tensor_given_twice_stays_two_inputs() -> None:
    module, same = TwoLengths(), torch.rand(2, 3)
    graph_spec, exported = export(module, [call(same, same)])
    example = make_example(graph_spec, [call(same, same)], CPU)
    assert example[0].data_ptr() != example[1].data_ptr()
    other = call(torch.rand(2, 3), torch.rand(2, 3))
    torch.testing.assert_close(answers(exported, graph_spec, other), module(*other.args))


@pytest.mark.filterwarnings("error")
def test_what_the_forward_changes_is_named() -> None:
    assert export(seeded(CallCounter), [call(torch.rand(2, 8))])[1].mutations == ("calls",)
    assert len(export(InputChanger(), [call(torch.rand(2, 8))])[1].mutations) == 1
    assert export(seeded(TinyMLP), [call(torch.rand(2, 8))])[1].mutations == ()


def test_in_place_operators_on_values_of_its_own_change_nothing() -> None:
    class Own(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return (x * 2).add_(1)

    assert export(Own(), [call(torch.rand(2, 8))])[1].mutations == ()


def test_module_that_cannot_be_copied_is_exported_and_left_as_it_was() -> None:
    module = seeded(TinyMLP)
    module.lock = threading.Lock()
    with pytest.raises(TypeError):
        copy.deepcopy(module)
    before = dict(module.__dict__)
    _, exported = export(module, [call(torch.rand(2, 8))])
    assert module.__dict__ == before
    weight = dict(exported.program.named_parameters())["module.layers.0.weight"]
    assert weight.data_ptr() == module.layers[0].weight.data_ptr()


def test_no_fake_tensor_is_left_behind() -> None:
    class Lazy(nn.Module):
        table: torch.Tensor | None = None

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if self.table is None:
                self.table = torch.arange(x.shape[1])
            return x + self.table

    module = Lazy()
    graph_spec, data = record_graph(Lazy(), [call(torch.rand(2, 3))])
    export_graph(module, graph_spec, data, CPU)
    assert module.table is None
    assert type(module(torch.rand(2, 3))) is torch.Tensor


class TestSharing:
    def test_inside_the_block_a_graph_is_exported_once(self) -> None:
        module = seeded(TinyMLP)
        graph_spec, data = record_graph(module, [call(torch.rand(2, 8))])
        with shared_exports():
            first = export_graph(module, graph_spec, data, CPU)
            with shared_exports():
                assert export_graph(module, graph_spec, data, CPU) is first
            assert export_graph(module, graph_spec, data, CPU) is first
            assert export_graph(seeded(TinyMLP, 1), graph_spec, data, CPU) is not first
        assert export_graph(module, graph_spec, data, CPU) is not first

    def test_wider_bounds_are_another_export(self) -> None:
        module = seeded(TinyMLP)
        graph_spec, data = record_graph(module, [call(torch.rand(1, 8)), call(torch.rand(2, 8))])
        with shared_exports():
            first = export_graph(module, graph_spec, data, CPU)
            graph_spec.update_max_batch_size(data[0], 16)
            assert export_graph(module, graph_spec, data, CPU) is not first

    def test_a_refusal_is_remembered_too(self) -> None:
        class Refused(nn.Module):
            runs = 0

            def forward(self, x: torch.Tensor) -> torch.Tensor:
                type(self).runs += 1
                return x if x.sum() > 0 else -x

        module = Refused()
        graph_spec, data = record_graph(module, [call(torch.rand(2, 3))])
        with shared_exports():
            for _ in range(2):
                with pytest.raises(ExportError):
                    export_graph(module, graph_spec, data, CPU)
                runs = Refused.runs
            assert runs == Refused.runs == 2


def test_no_recorded_call_is_an_error() -> None:
    module = seeded(TinyMLP)
    graph_spec, _ = record_graph(module, [call(torch.rand(2, 8))])
    with pytest.raises(ExportError, match="no recorded call"):
        export_graph(module, graph_spec, [], CPU)


def test_lengths_that_must_agree_keep_the_range_that_both_allow() -> None:
    shapes = {
        "ids": (BatchDim("batch", 1, 4), DynamicDim("ids length", 1, 9)),
        "mask": (BatchDim("batch", 1, 4), DynamicDim("mask length", 2, 12)),
    }
    _, exported = export(tiny_encoder(), [tiny_encoder_call(2, 5)], dynamic_shapes=shapes)
    assert exported.equal_symbols == (("ids length", "mask length"),)
    ranges = {(int(found.lower), int(found.upper)) for found in exported.program.range_constraints.values()}
    assert ranges == {(1, 4), (2, 9)}
