from __future__ import annotations

from typing import Any, Literal

import pytest
import torch

from aitune.exceptions import AITuneUserInputError, BuildError, ControlFlowError, InferenceError
from aitune.testing.backend_conformance import BackendConformance
from aitune.testing.graphs import call, record_graph
from aitune.testing.tiny_models import CallCounter, InputChanger, TinyMLP, seeded
from aitune.torch.backend.openvino_backend import OpenVINOBackend, OpenVINOBackendConfig

Conversion = Literal["export", "onnx", "module"]
CONVERSIONS: list[Conversion] = ["export", "onnx", "module"]


class TestOpenVINOConformance(BackendConformance):
    @classmethod
    def make_backend(cls) -> OpenVINOBackend:
        return OpenVINOBackend()


class TestOpenVINOThroughONNXConformance(BackendConformance):
    @classmethod
    def make_backend(cls) -> OpenVINOBackend:
        return OpenVINOBackend(OpenVINOBackendConfig(conversion="onnx"))


class TestOpenVINOFromTheModuleConformance(BackendConformance):
    @classmethod
    def make_backend(cls) -> OpenVINOBackend:
        return OpenVINOBackend(OpenVINOBackendConfig(conversion="module"))


def test_float32_is_asked_for_explicitly(build: Any) -> None:
    backend = build(OpenVINOBackend(), seeded(TinyMLP), [call(torch.rand(2, 8))])
    assert "float" in str(backend._compiled.get_property("INFERENCE_PRECISION_HINT"))
    assert backend.is_exact
    assert not OpenVINOBackend(OpenVINOBackendConfig(precision="bf16")).is_exact
    weights = (backend.artifact.path / "model.bin").stat().st_size
    assert weights >= 4 * sum(parameter.numel() for parameter in seeded(TinyMLP).parameters())


@pytest.mark.parametrize("conversion", CONVERSIONS)
def test_module_that_changes_inputs_or_buffers_is_refused(build: Any, conversion: Conversion) -> None:
    for module in (seeded(CallCounter), InputChanger()):
        with pytest.raises(BuildError, match="changes its inputs or buffers"):
            build(OpenVINOBackend(OpenVINOBackendConfig(conversion=conversion)), module, [call(torch.rand(2, 8))])


@pytest.mark.parametrize("conversion", CONVERSIONS)
def test_unused_inputs_are_told_apart(build: Any, unused: torch.nn.Module, conversion: Conversion) -> None:
    settings = OpenVINOBackendConfig(conversion=conversion)
    backend = build(OpenVINOBackend(settings), unused, [call(*torch.rand(4, 2, 3))])
    tensors = torch.rand(4, 2, 3)
    torch.testing.assert_close(backend.infer(*tensors), unused(*tensors))


@pytest.mark.parametrize("conversion", CONVERSIONS)
def test_odd_outputs(build: Any, odd: torch.nn.Module, conversion: Conversion) -> None:
    x = torch.randn(2, 3)
    backend = build(OpenVINOBackend(OpenVINOBackendConfig(conversion=conversion)), odd, [call(x)])
    for _ in range(2):
        answer = backend.infer(x)
        torch.testing.assert_close(answer, tuple(value.detach() for value in odd(x)))
        answer[2].add_(1)


def test_module_that_torch_export_refuses_is_converted_from_the_module(
    build: Any, unexportable: torch.nn.Module
) -> None:
    x = torch.rand(2, 3)
    backend = build(OpenVINOBackend(), unexportable, [call(x)])
    assert torch.equal(backend.infer(x), x * 2)
    assert backend.notes == ("converted from the module, by tracing one run",)


def test_a_branch_on_values_is_refused_and_not_traced(build: Any, branch: torch.nn.Module) -> None:
    with pytest.raises(BuildError, match=r"torch\.export refused") as caught:
        build(OpenVINOBackend(), branch, [call(torch.rand(2, 3))])
    assert isinstance(caught.value.__cause__, ControlFlowError)


def test_values_that_int32_cannot_hold_are_left_to_the_original(build: Any, unused: torch.nn.Module) -> None:
    large = torch.tensor([2**31])
    small = torch.tensor([2**31 - 1])
    backend = build(OpenVINOBackend(), unused, [call(small, small, small, small)])
    with pytest.raises(InferenceError, match="2147483648"):
        backend.infer(large, large, large, large)
    assert backend.infer(small, small, small, small)[1].item() == 2**31 - 1


def test_float64_is_refused_before_a_build() -> None:
    module = seeded(TinyMLP).double()
    graph_spec, _ = record_graph(module, [call(torch.rand(2, 8, dtype=torch.float64))])
    assert "float64" in str(OpenVINOBackend().can_run(module, graph_spec, torch.device("cpu")))


def test_settings_are_checked() -> None:
    for settings in ({"precision": "f64"}, {"performance_hint": "fast"}, {"conversion": "magic"}):
        with pytest.raises(AITuneUserInputError, match="must be one of"):
            OpenVINOBackendConfig(**settings)
