from __future__ import annotations

import json
import threading
from typing import Any

import numpy
import pytest
import torch

from aitune.exceptions import AITuneUserInputError, BackendError, BuildError, ControlFlowError, InferenceError
from aitune.testing.backend_conformance import BackendConformance
from aitune.testing.graphs import call, record_graph
from aitune.testing.tiny_models import CallCounter, InputChanger, TinyMLP, seeded, tiny_encoder, tiny_encoder_call
from aitune.torch.backend.onnx_runtime_backend import ONNXRuntimeBackend, ONNXRuntimeBackendConfig
from aitune.torch.config import config

TRACED = ONNXRuntimeBackendConfig(use_dynamo=False)


class TestONNXRuntimeConformance(BackendConformance):
    @classmethod
    def make_backend(cls) -> ONNXRuntimeBackend:
        return ONNXRuntimeBackend()


class TestONNXRuntimeTracedConformance(BackendConformance):
    @classmethod
    def make_backend(cls) -> ONNXRuntimeBackend:
        return ONNXRuntimeBackend(TRACED)


@pytest.mark.parametrize("settings", [ONNXRuntimeBackendConfig(), TRACED], ids=["export", "trace"])
def test_module_that_changes_inputs_or_buffers_is_refused_and_not_changed(
    build: Any, settings: ONNXRuntimeBackendConfig
) -> None:
    counter = seeded(CallCounter)
    calls = [call(torch.rand(2, 8))]
    record_graph(counter, calls)
    for module in (counter, InputChanger()):
        with pytest.raises(BuildError, match="changes its inputs or buffers"):
            build(ONNXRuntimeBackend(settings), module, calls)
    assert counter.calls == 2  # the recorded runs, none of the build's


def test_module_that_torch_export_refuses_is_traced_and_says_so(build: Any, unexportable: torch.nn.Module) -> None:
    x = torch.rand(2, 3)
    backend = build(ONNXRuntimeBackend(), unexportable, [call(x)])
    assert torch.equal(backend.infer(x), x * 2)
    assert "tracing" in backend.notes[0]
    with pytest.raises(BackendError, match=r"torch\.export refused"):
        build(ONNXRuntimeBackend(ONNXRuntimeBackendConfig(use_dynamo=True)), unexportable, [call(x)])


def test_a_branch_on_values_is_refused_and_not_traced(build: Any, branch: torch.nn.Module) -> None:
    with pytest.raises(BackendError, match=r"torch\.export refused") as caught:
        build(ONNXRuntimeBackend(), branch, [call(torch.rand(2, 3))])
    assert isinstance(caught.value.__cause__, ControlFlowError)


@pytest.mark.parametrize("settings", [ONNXRuntimeBackendConfig(), TRACED], ids=["export", "trace"])
def test_unused_inputs_and_odd_outputs(
    build: Any, unused: torch.nn.Module, odd: torch.nn.Module, settings: ONNXRuntimeBackendConfig
) -> None:
    backend = build(ONNXRuntimeBackend(settings), unused, [call(*torch.rand(4, 2, 3))])
    tensors = torch.rand(4, 2, 3)
    torch.testing.assert_close(backend.infer(*tensors), unused(*tensors))
    x = torch.randn(2, 3)
    odd_backend = build(ONNXRuntimeBackend(settings), odd, [call(x)])
    for _ in range(2):
        answer = odd_backend.infer(x)
        torch.testing.assert_close(answer, tuple(value.detach() for value in odd(x)))
        answer[2].add_(1)  # a caller writes to its answer; the next call must not show it


def test_float64_is_exact_or_refused(build: Any) -> None:
    module = seeded(TinyMLP).double()
    x = torch.rand(2, 8, dtype=torch.float64)
    try:
        backend = build(ONNXRuntimeBackend(), module, [call(x)])
    except BackendError:
        return
    torch.testing.assert_close(backend.infer(x), module(x).detach(), rtol=1e-12, atol=1e-12)


def test_kinds_without_kernels_are_refused_before_a_build() -> None:
    cpu = torch.device("cpu")
    low = seeded(TinyMLP).bfloat16()
    graph_spec, _ = record_graph(low, [call(torch.rand(2, 8, dtype=torch.bfloat16))])
    assert "bfloat16" in str(ONNXRuntimeBackend().can_run(low, graph_spec, cpu))

    class Spectrum(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.fft.fft(x)

    graph_spec, _ = record_graph(Spectrum(), [call(torch.rand(2, 8))])
    assert "complex" in str(ONNXRuntimeBackend().can_run(Spectrum(), graph_spec, cpu))

    class Sparse(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("weight", torch.eye(3).to_sparse())

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.sparse.mm(self.weight, x)

    graph_spec, _ = record_graph(Sparse(), [call(torch.rand(3, 2))])
    assert "sparse" in str(ONNXRuntimeBackend().can_run(Sparse(), graph_spec, cpu))


@pytest.mark.parametrize(
    ("sample", "reason"),
    [
        (tiny_encoder_call(5, 5), "ids has shape"),
        (tiny_encoder_call(2, 12), "ids has shape"),
        ((tiny_encoder_call(2, 5).args[0].float(), tiny_encoder_call(2, 5).args[1]), "expected torch.int64"),
        ((tiny_encoder_call(2, 5).args[0], tiny_encoder_call(2, 6).args[1]), "differs"),
        ((tiny_encoder_call(2, 5).args[0][0], tiny_encoder_call(2, 5).args[1]), "has 1 axes"),
    ],
)
def test_calls_of_another_graph_are_refused(encoder: Any, sample: Any, reason: str) -> None:
    args = sample.args if hasattr(sample, "args") else sample
    with pytest.raises(InferenceError, match=reason):
        encoder.infer(*args, scale=0.5)


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Any:
    module = tiny_encoder()
    graph_spec, data = record_graph(module, [tiny_encoder_call(1, 3), tiny_encoder_call(4, 9)])
    backend = ONNXRuntimeBackend()
    backend.build(module, graph_spec, data, "cpu", tmp_path_factory.mktemp("encoder"))
    backend.activate()
    return backend


def test_threads_come_from_the_backend_then_the_library_then_torch(encoder: Any) -> None:
    def threads(backend: Any) -> int:
        return int(backend._session.get_session_options().intra_op_num_threads)

    encoder.deactivate()
    encoder.activate()
    assert threads(encoder) == torch.get_num_threads()
    encoder.deactivate()
    with config.override(num_threads=torch.get_num_threads() + 1):
        encoder.activate()
    assert threads(encoder) == torch.get_num_threads() + 1


def test_many_threads_get_their_own_answers(encoder: Any) -> None:
    module = tiny_encoder()
    wrong: list[int] = []

    def serve(number: int) -> None:
        sample = tiny_encoder_call(1 + number % 4, 3 + number % 7, seed=number)
        expected = module(*sample.args, **sample.kwargs)["hidden"].detach()
        for _ in range(20):
            if not torch.allclose(encoder.infer(*sample.args, **sample.kwargs)["hidden"], expected, atol=1e-5):
                wrong.append(number)

    threads = [threading.Thread(target=serve, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_what_a_call_raises_is_not_written_to_the_terminal_as_well(encoder: Any, capfd: Any) -> None:
    ids = torch.full((2, 5), 10_000)
    with pytest.raises(Exception, match="out of data bounds"):
        encoder.infer(ids, torch.ones_like(ids), scale=0.5)
    captured = capfd.readouterr()
    assert (captured.out, captured.err) == ("", "")


def test_settings_are_checked() -> None:
    for settings in ({"num_threads": 0}, {"num_threads": True}, {"opset_version": -1}):
        with pytest.raises(AITuneUserInputError, match=r"ONNXRuntimeBackendConfig: .+ integer of at least 1"):
            ONNXRuntimeBackendConfig(**settings)
    counted = ONNXRuntimeBackendConfig(num_threads=numpy.int64(2))  # type: ignore[arg-type,unused-ignore]
    assert ONNXRuntimeBackendConfig.from_dict(json.loads(json.dumps(counted.to_dict()))) == counted
    with pytest.raises(AITuneUserInputError, match="plain data"):
        ONNXRuntimeBackendConfig(execution_provider=object())  # type: ignore[arg-type]
