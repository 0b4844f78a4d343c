"""Answers after saving and loading are bit for bit those from before, whatever the backend and the module."""

from __future__ import annotations

import json
import pickletools
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
import torch
from tuned_parts import (
    RUN,
    StoredEncoder,
    answers,
    dataclass_net,
    encoder_calls,
    load_in_fresh_process,
    pair_net,
    read_answers,
    row_calls,
    rows,
    set_tuned,
    structure_of,
    tensors_of,
    two_graphs,
    write_job,
)  # fmt: skip

import aitune.torch as ait
from aitune.artifact.reading import Artifact
from aitune.exceptions import ArtifactError
from aitune.testing.tiny_models import tiny_encoder, tiny_encoder_call
from aitune.torch.backend.backend import Backend
from aitune.torch.backend.onnx_runtime_backend import ONNXRuntimeBackend
from aitune.torch.backend.openvino_backend import OpenVINOBackend
from aitune.torch.backend.torch_eager import TorchEagerBackend, TorchEagerBackendConfig
from aitune.torch.backend.torch_inductor_aot_backend import TorchInductorAotBackend
from aitune.torch.backend.torch_inductor_jit_backend import TorchInductorJitBackend
from aitune.torch.backend.torchao_backend import TorchAOBackend, TorchAOBackendConfig
from aitune.torch.module.sample import Sample
from aitune.torch.module.wrapper_module import Module

CALLS = [tiny_encoder_call(2, 5, seed=1), tiny_encoder_call(3, 7, seed=2)]

BACKENDS: list[Any] = [
    pytest.param(TorchEagerBackend, id="eager"),
    pytest.param(lambda: TorchEagerBackend(TorchEagerBackendConfig(channels_last=True)), id="channels_last"),
    pytest.param(ONNXRuntimeBackend, id="onnx"),
    pytest.param(OpenVINOBackend, id="openvino"),
    pytest.param(lambda: TorchAOBackend(TorchAOBackendConfig("int8_weight_only")), id="torchao"),
    pytest.param(TorchInductorAotBackend, id="aot", marks=pytest.mark.slow),
    pytest.param(TorchInductorJitBackend, id="jit", marks=pytest.mark.slow),
]


@pytest.fixture
def encoder_on(stored_encoder: Callable[[Backend], StoredEncoder], tmp_path: Path) -> Callable[[Backend], Module]:
    """Gives the tiny encoder tuned on a backend, with its files in the folder ``builds``."""

    def tune(backend: Backend) -> Module:
        if backend.recovery == "artifact":
            return stored_encoder(backend).tuned(tmp_path / "builds")
        return set_tuned(tiny_encoder(), [(backend, encoder_calls())], tmp_path / "builds", "encoder")

    return tune


def same(got: list[list[torch.Tensor]], wanted: list[Any]) -> bool:
    pairs = [(g, tensors_of(w)) for g, w in zip(got, wanted, strict=True)]
    return all(len(g) == len(w) and all(map(torch.equal, g, w)) for g, w in pairs)


@pytest.fixture
def elsewhere(tmp_path: Path) -> Iterator[Path]:
    """A folder that cannot be written to once a test has put its file there."""
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    yield folder
    folder.chmod(0o700)


@pytest.mark.parametrize("make", BACKENDS)
def test_every_backend_answers_bit_for_bit_in_a_fresh_process(
    make: Callable[[], Backend], encoder_on: Callable[[Backend], Module], tmp_path: Path, elsewhere: Path
) -> None:
    backend = make()
    tuned = encoder_on(backend)
    wanted = answers(tuned, CALLS)
    ait.save(tuned, tmp_path / "encoder.ait")
    shutil.move(tmp_path / "encoder.ait", elsewhere / "moved.ait")
    shutil.rmtree(tmp_path / "builds")
    shutil.rmtree(ait.config.resolve_cache_dir(), ignore_errors=True)
    elsewhere.chmod(0o500)
    fresh = load_in_fresh_process(
        elsewhere / "moved.ait",
        CALLS,
        tuned.graph_specs[0],
        tmp_path / "fresh",
        factory="aitune.testing.tiny_models:tiny_encoder",
        options={"strict": True},
        # The caches of torch.compile, which do not belong to the file, hold pickles.
        forbid_unpickling=backend.name != "TorchInductorJit",
    )
    assert same(fresh.tensors, wanted)
    assert fresh.structures == [structure_of(output) for output in wanted]
    assert (fresh.served, fresh.fallbacks) == (2, 0)
    assert [path.name for path in elsewhere.iterdir()] == ["moved.ait"]
    assert not list((tmp_path / "fresh" / "cache").rglob("files"))


@pytest.mark.parametrize(
    "make",
    [ONNXRuntimeBackend, OpenVINOBackend, pytest.param(TorchInductorAotBackend, marks=pytest.mark.slow)],
)
def test_a_file_that_needs_no_module_is_loaded_without_one(
    make: Callable[[], Backend], encoder_on: Callable[[Backend], Module], tmp_path: Path
) -> None:
    tuned = encoder_on(make())
    wanted = answers(tuned, CALLS)
    ait.save(tuned, tmp_path / "encoder.ait")
    fresh = load_in_fresh_process(tmp_path / "encoder.ait", CALLS, tuned.graph_specs[0], tmp_path / "fresh")
    assert same(fresh.tensors, wanted)
    assert fresh.structures == [structure_of(output) for output in wanted]


def test_named_tuples_and_tied_weights(tmp_path: Path) -> None:
    calls = [Sample((rows(2, 5),), {})]
    tuned = set_tuned(pair_net(), [(ONNXRuntimeBackend(), row_calls())], tmp_path / "builds", "pair")
    wanted = answers(tuned, calls)
    ait.save(tuned, tmp_path / "pair.ait", include_original_weights=True)
    fresh = load_in_fresh_process(
        tmp_path / "pair.ait", calls, tuned.graph_specs[0], tmp_path / "fresh", imports=["tuned_parts"]
    )
    assert same(fresh.tensors, wanted)
    assert fresh.structures == [structure_of(output) for output in wanted]
    other = pair_net()
    with torch.no_grad():
        other.first.weight.add_(1)
    loaded = ait.load(other, tmp_path / "pair.ait")
    assert other.second.weight is other.first.weight
    assert same([tensors_of(loaded(*calls[0].args))], wanted)


def test_a_dataclass_comes_back_as_one(tmp_path: Path) -> None:
    calls = [Sample((rows(3, 5),), {})]
    tuned = set_tuned(dataclass_net(), [(OpenVINOBackend(), row_calls())], tmp_path / "builds", "data")
    wanted = answers(tuned, calls)
    ait.save(tuned, tmp_path / "data.ait")
    fresh = load_in_fresh_process(
        tmp_path / "data.ait", calls, tuned.graph_specs[0], tmp_path / "fresh", imports=["tuned_parts"]
    )
    assert same(fresh.tensors, wanted)
    assert fresh.structures == [structure_of(output) for output in wanted]
    assert fresh.structures[0].startswith("TreeSpec(Encoded")


def test_several_graphs_on_different_backends(tmp_path: Path) -> None:
    graphs = [(ONNXRuntimeBackend(), row_calls(double=False)), (OpenVINOBackend(), row_calls(double=True))]
    tuned = set_tuned(two_graphs(), graphs, tmp_path / "builds", "two")
    calls = [Sample((rows(2, 3),), {"double": False}), Sample((rows(3, 4),), {"double": True})]
    wanted = answers(tuned, calls)
    ait.save(tuned, tmp_path / "two.ait")
    fresh = load_in_fresh_process(tmp_path / "two.ait", calls, tuned.graph_specs[0], tmp_path / "fresh", graphs=[0, 1])
    assert same(fresh.tensors, wanted)
    assert (fresh.served, fresh.fallbacks) == (2, 0)


@pytest.mark.slow
def test_a_model_output_of_transformers_comes_back_as_one(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    settings = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = transformers.BertModel(transformers.BertConfig(vocab_size=50, **settings)).eval()
    calls = [Sample((), {"input_ids": tiny_encoder_call(n, m).args[0]}) for n, m in ((2, 4), (3, 7))]
    tuned = set_tuned(model, [(ONNXRuntimeBackend(), calls)], tmp_path / "builds", "bert")
    wanted = answers(tuned, calls)
    ait.save(tuned, tmp_path / "bert.ait")
    fresh = load_in_fresh_process(
        tmp_path / "bert.ait", calls, tuned.graph_specs[0], tmp_path / "fresh",
        imports=["transformers.modeling_outputs"],
    )  # fmt: skip
    assert same(fresh.tensors, wanted)
    assert fresh.structures == [structure_of(output) for output in wanted]
    assert "BaseModelOutput" in fresh.structures[0]


def test_a_build_that_gives_precision_away_asks_for_the_weights_that_it_was_judged_with(
    encoder_on: Callable[[Backend], Module], tmp_path: Path
) -> None:
    ait.save(encoder_on(TorchAOBackend(TorchAOBackendConfig("int8_weight_only"))), tmp_path / "encoder.ait")
    other = tiny_encoder()
    with torch.no_grad():
        other.linear.weight.mul_(2)
    with pytest.raises(ArtifactError, match=r"the first is 'linear\.weight'"):
        ait.load(other, tmp_path / "encoder.ait")


def test_two_processes_load_at_once(onnx_encoder: StoredEncoder, tmp_path: Path) -> None:
    tuned = onnx_encoder.tuned(tmp_path / "builds")
    wanted = answers(tuned, CALLS)
    ait.save(tuned, tmp_path / "encoder.ait")
    folders = [tmp_path / "one", tmp_path / "two"]
    for folder in folders:
        write_job(tmp_path / "encoder.ait", CALLS, tuned.graph_specs[0], folder)
    cache = {"AITUNE_CACHE_DIR": str(tmp_path / "shared"), "PATH": "", "OMP_NUM_THREADS": "1"}
    children = [subprocess.Popen([sys.executable, str(RUN), str(folder)], env=cache) for folder in folders]
    assert [child.wait(120) for child in children] == [0, 0]
    for folder in folders:
        assert same(read_answers(folder, len(CALLS)).tensors, wanted)


def parts_of(content: bytes) -> Iterator[bytes]:
    yield content
    if zipfile.is_zipfile(BytesIO(content)):
        with zipfile.ZipFile(BytesIO(content)) as inner:
            for name in inner.namelist():
                yield from parts_of(inner.read(name))


def is_pickle(content: bytes) -> bool:
    try:
        operations = [operation.name for operation, _, _ in pickletools.genops(content)]
    except Exception:
        return False
    return operations[-1:] == ["STOP"]


def test_the_search_for_pickles_finds_one() -> None:
    import pickle

    assert is_pickle(pickle.dumps({"a": [1]}))
    assert is_pickle(pickle.dumps(3, protocol=0))
    assert not is_pickle(b'{"a": 1}')


@pytest.mark.parametrize("make", BACKENDS)
def test_no_member_is_a_pickle(
    make: Callable[[], Backend], encoder_on: Callable[[Backend], Module], tmp_path: Path
) -> None:
    ait.save(encoder_on(make()), tmp_path / "encoder.ait", include_original_weights=True)
    parts = list(parts_of((tmp_path / "encoder.ait").read_bytes()))
    assert len(parts) > 3
    assert not [part[:20] for part in parts if is_pickle(part)]


def test_the_manifest_is_plain_json_and_names_native_code(onnx_encoder: StoredEncoder, tmp_path: Path) -> None:
    ait.save(onnx_encoder.tuned(tmp_path / "builds"), tmp_path / "encoder.ait")
    with zipfile.ZipFile(tmp_path / "encoder.ait") as file:
        assert file.testzip() is None
        manifest = json.loads(file.read("manifest.json"))
    assert manifest["modules"][0]["graphs"][0]["backends"][0]["native_code"] is False
    assert "root" not in json.dumps(manifest["modules"][0]["graphs"])


def test_saving_what_was_loaded_gives_the_same_members(onnx_encoder: StoredEncoder, tmp_path: Path) -> None:
    ait.save(onnx_encoder.tuned(tmp_path / "builds"), tmp_path / "one.ait")
    ait.save(ait.load(tiny_encoder(), tmp_path / "one.ait"), tmp_path / "two.ait")
    with Artifact(tmp_path / "one.ait") as one, Artifact(tmp_path / "two.ait") as two:
        assert one.manifest.modules == two.manifest.modules
        assert one.manifest.members == two.manifest.members
