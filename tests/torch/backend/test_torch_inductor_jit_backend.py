from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from aitune.exceptions import BuildError
from aitune.testing.backend_conformance import BackendConformance
from aitune.testing.graphs import call, record_graph
from aitune.testing.tiny_models import InputChanger, TinyMLP, seeded, tiny_encoder, tiny_encoder_call
from aitune.torch.backend.torch_inductor_jit_backend import TorchInductorJitBackend, TorchInductorJitBackendConfig

pytestmark = pytest.mark.slow


class TestTorchInductorJitConformance(BackendConformance):
    @classmethod
    def make_backend(cls) -> TorchInductorJitBackend:
        return TorchInductorJitBackend()


def test_nothing_is_compiled_while_serving_and_compiled_code_serves(build: Any) -> None:
    import torch._dynamo
    from torch._dynamo.utils import counters

    module = tiny_encoder()
    backend = build(TorchInductorJitBackend(), module, [tiny_encoder_call(1, 3), tiny_encoder_call(4, 9)])
    assert backend.compilations >= 1
    assert backend.notes == ()
    before = counters["stats"]["unique_graphs"]
    run, served = backend._run_only, []
    for batch in (1, 2, 3, 4):
        for length in (3, 5, 9):
            sample = tiny_encoder_call(batch, length)
            # With compiling allowed, an error would say that nothing compiled fits this call.
            with torch._dynamo.config.patch(error_on_recompile=True), torch.no_grad():
                backend._compiled(*sample.args, **sample.kwargs)
            served.append(backend.infer(*sample.args, **sample.kwargs))
    assert len(served) == 12
    assert counters["stats"]["unique_graphs"] == before
    assert run is backend._run_only


def test_two_backends_of_one_class_do_not_share_a_limit(build: Any) -> None:
    x = torch.rand(2, 8)
    first, second = seeded(TinyMLP, 1), seeded(TinyMLP, 2)
    backends = [build(TorchInductorJitBackend(), module, [call(x)]) for module in (first, second)]
    for backend, module in zip(backends, (first, second), strict=True):
        torch.testing.assert_close(backend.infer(x), module(x).detach())


def test_says_when_nothing_was_compiled(build: Any) -> None:
    module, x = nn.LSTM(8, 8, batch_first=True).eval(), torch.rand(2, 3, 8)
    backend = build(TorchInductorJitBackend(), module, [call(x)])
    assert backend.compilations == 0
    assert "nothing was compiled" in backend.notes[0]
    torch.testing.assert_close(backend.infer(x)[0], module(x)[0].detach())


def test_says_how_often_the_graph_breaks(build: Any, branch: nn.Module) -> None:
    x = torch.rand(2, 3)
    backend = build(TorchInductorJitBackend(), branch, [call(x)])
    assert "graph break" in backend.notes[0]
    for each in (x, -x):
        torch.testing.assert_close(backend.infer(each), branch(each))
    with pytest.raises(BuildError):
        build(TorchInductorJitBackend(TorchInductorJitBackendConfig(fullgraph=True)), branch, [call(x)])


def test_changes_of_inputs_reach_the_caller(build: Any) -> None:
    backend = build(TorchInductorJitBackend(), InputChanger(), [call(torch.rand(2, 8))])
    for x in (torch.zeros(2, 8), torch.zeros(8, 2).t()):
        assert torch.equal(backend.infer(x), torch.full((2, 8), 2.0))
        assert torch.equal(x, torch.ones(2, 8))


def test_unfrozen_code_follows_the_weights(build: Any) -> None:
    module, x = seeded(TinyMLP), torch.rand(2, 8)
    backend = build(TorchInductorJitBackend(TorchInductorJitBackendConfig(freezing=False)), module, [call(x)])
    assert backend.follows_weights
    with torch.no_grad():
        module.layers[2].bias.add_(1)
    torch.testing.assert_close(backend.infer(x), module(x).detach())


def test_frozen_code_holds_its_own_weights_and_says_so(build: Any) -> None:
    module, x = seeded(TinyMLP), torch.rand(2, 8)
    backend = build(TorchInductorJitBackend(), module, [call(x)])
    expected = module(x).detach()
    assert not backend.follows_weights
    with torch.no_grad():
        module.layers[2].bias.add_(1)
    torch.testing.assert_close(backend.infer(x), expected)


def test_autocast_gives_precision_away_and_keeps_the_dtype(build: Any) -> None:
    module, x = seeded(TinyMLP), torch.rand(2, 8)
    config = TorchInductorJitBackendConfig(autocast_enabled=True)
    backend = build(TorchInductorJitBackend(config), module, [call(x)])
    assert not backend.is_exact
    assert backend.infer(x).dtype is torch.float32
    assert torch.allclose(backend.infer(x), module(x), atol=0.05)


def test_compiler_settings_come_back() -> None:
    config = TorchInductorJitBackendConfig(dynamic=True, mode="default", options={"epilogue_fusion": False})
    assert TorchInductorJitBackendConfig.from_dict(config.to_dict()) == config
    assert "mode=default" in TorchInductorJitBackend(config).describe()


def test_unknown_mode_is_a_build_error() -> None:
    module, x = seeded(TinyMLP), torch.rand(2, 8)
    graph_spec, data = record_graph(module, [call(x)])
    with pytest.raises(BuildError, match="no-such-mode"):
        TorchInductorJitBackend(TorchInductorJitBackendConfig(mode="no-such-mode")).build(
            module, graph_spec, data, "cpu", "unused"
        )
