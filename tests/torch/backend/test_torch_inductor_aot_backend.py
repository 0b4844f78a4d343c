from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from aitune.exceptions import ArtifactError, BuildError, InferenceError
from aitune.testing.backend_conformance import BackendConformance, BuiltBackend
from aitune.testing.graphs import call, record_graph
from aitune.testing.tiny_models import CallCounter, InputChanger, TinyConvNet, TinyMLP, seeded, tiny_encoder_call
from aitune.torch.backend.export import export_graph, shared_exports
from aitune.torch.backend.onnx_runtime_backend import ONNXRuntimeBackend
from aitune.torch.backend.openvino_backend import OpenVINOBackend
from aitune.torch.backend.torch_inductor_aot_backend import TorchInductorAotBackend, TorchInductorAotBackendConfig

pytestmark = pytest.mark.slow


class TestTorchInductorAotConformance(BackendConformance):
    @classmethod
    def make_backend(cls) -> TorchInductorAotBackend:
        return TorchInductorAotBackend()

    @pytest.mark.parametrize("sizes", [(5, 5), (2, 10)], ids=str)
    def test_sizes_outside_the_range_are_refused(self, built: BuiltBackend, sizes: tuple[int, int]) -> None:
        sample = tiny_encoder_call(*sizes)
        with pytest.raises(InferenceError, match="ids has shape"):
            built.backend.infer(*sample.args, **sample.kwargs)

    def test_another_dtype_is_refused(self, built: BuiltBackend) -> None:
        (ids, mask), options = tiny_encoder_call(2, 5)
        with pytest.raises(InferenceError, match=r"mask is torch\.int32"):
            built.backend.infer(ids, mask.int(), **options)

    def test_library_of_another_torch_is_refused(self, built: BuiltBackend) -> None:
        state = {**built.state, "versions": {**built.state["versions"], "torch": "1.0"}}
        with pytest.raises(ArtifactError, match=r"compiled for torch 1\.0"):
            TorchInductorAotBackend.from_dict(None, state)

    def test_damaged_library_is_an_error(self, built: BuiltBackend, tmp_path: Path) -> None:
        from aitune.torch.backend.artifact_path import ArtifactPath

        folder = tmp_path / "inductor"
        folder.mkdir()
        (folder / "model.pt2").write_bytes(b"no package")
        state = {**built.state, "artifact": ArtifactPath.from_existing(folder, tmp_path)}
        with pytest.raises(BuildError, match="cannot load"):
            TorchInductorAotBackend.from_dict(None, state).activate()


def test_module_that_changes_inputs_or_buffers_is_refused_before_it_is_compiled(build: Any) -> None:
    for module in (seeded(CallCounter), InputChanger()):
        with pytest.raises(BuildError, match="changes its inputs or buffers"):
            build(TorchInductorAotBackend(), module, [call(torch.rand(2, 8))])


def test_a_batch_range_that_ends_at_the_width_of_a_vector_stays_whole(build: Any) -> None:
    # Choosing its convolution, torch notes "16 or more" of a batch of 16; in a range that ends there only 16 is left,
    # and the library writes out of bounds for any other size.
    module = seeded(TinyConvNet)
    backend = build(TorchInductorAotBackend(), module, [call(torch.rand(size, 3, 16, 16)) for size in (1, 16)])
    for size in (1, 2, 15, 16):
        image = torch.rand(size, 3, 16, 16)
        assert torch.allclose(backend.infer(image), module(image), atol=1e-5)


def test_a_size_that_the_compiler_fixed_is_refused_before_the_library_is_loaded(build: Any) -> None:
    with pytest.raises(BuildError, match=r"fixed axis 0 of image.* to 15, where 15\.\.16 was asked for"):
        build(TorchInductorAotBackend(), seeded(TinyConvNet), [call(torch.rand(size, 3, 16, 16)) for size in (15, 16)])


@pytest.mark.parametrize("aot_first", [True, False])
def test_one_export_serves_all_in_any_order(tmp_path: Path, aot_first: bool) -> None:
    module = seeded(TinyMLP)
    graph_spec, data = record_graph(module, [call(torch.rand(1, 8)), call(torch.rand(4, 8))])
    backends: list[Any] = [ONNXRuntimeBackend(), OpenVINOBackend(), TorchInductorAotBackend()]
    with shared_exports():
        exported = export_graph(module, graph_spec, data, torch.device("cpu"))
        for number, backend in enumerate(backends[::-1] if aot_first else backends):
            folder = tmp_path / str(number)
            folder.mkdir()
            backend.build(module, graph_spec, data, "cpu", folder)
        assert export_graph(module, graph_spec, data, torch.device("cpu")) is exported
    x = torch.rand(3, 8)
    for backend in backends:
        backend.activate()
        torch.testing.assert_close(backend.infer(x), module(x).detach())


def test_settings_of_inductor_are_plain_data() -> None:
    config = TorchInductorAotBackendConfig(inductor_configs={"max_autotune": True}, freezing=False)
    assert TorchInductorAotBackendConfig.from_dict(config.to_dict()) == config
    assert TorchInductorAotBackend(config).key() != TorchInductorAotBackend().key()
