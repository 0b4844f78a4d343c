"""Odd paths, other folders, files that change under one's feet, and threads that call meanwhile."""

from __future__ import annotations

import gc
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tuned_parts import StoredEncoder, answers, row_calls, rows, set_tuned, tensors_of, two_graphs

import aitune.torch as ait
from aitune.exceptions import AITuneEnvironmentError, AITuneUserInputError, ArtifactError
from aitune.testing.tiny_models import tiny_encoder, tiny_encoder_call
from aitune.torch.backend.onnx_runtime_backend import ONNXRuntimeBackend
from aitune.torch.backend.torch_eager import TorchEagerBackend
from aitune.torch.module.sample import Sample
from aitune.torch.module.wrapper_module import Module

CALLS = [tiny_encoder_call(2, 5, seed=1)]


@pytest.fixture
def tuned(onnx_encoder: StoredEncoder, tmp_path: Path) -> Module:
    return onnx_encoder.tuned(tmp_path / "builds")


def outputs(module: Callable[..., Any]) -> list[torch.Tensor]:
    return tensors_of(answers(module, CALLS)[0])


def same(module: Callable[..., Any], wanted: list[torch.Tensor]) -> bool:
    return all(map(torch.equal, outputs(module), wanted))


@pytest.mark.parametrize("name", ["with space", "ünï数☃", "-rf", "a'b\"c", "%s{x}", "x" * 100])
def test_any_name_of_folders_and_files(tuned: Module, tmp_path: Path, name: str) -> None:
    folder = tmp_path / name
    folder.mkdir()
    with ait.config.override(cache_dir=folder / "cache"):
        ait.save(tuned, folder / f"{name}.ait")
        loaded = ait.load(tiny_encoder(), folder / f"{name}.ait", strict=True)
    assert list((folder / "cache").rglob("files"))
    assert same(loaded, outputs(tuned))


@pytest.mark.parametrize("path", ["a\0b", "", b"x.ait", None])
def test_what_is_no_path(tuned: Module, path: Any) -> None:
    for function in (ait.save, ait.load):
        with pytest.raises(AITuneUserInputError, match="path must be a path"):
            function(tuned, path)


def test_relative_paths_hold_after_the_current_folder_changed(
    onnx_encoder: StoredEncoder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    tuned = onnx_encoder.tuned(Path("builds"))
    ait.save(tuned, "one.ait")
    with ait.config.override(cache_dir="cache"):
        loaded = ait.load(None, "one.ait")
    assert list((tmp_path / "cache").rglob("files"))
    monkeypatch.chdir(tmp_path / "elsewhere")
    for number, module in enumerate((tuned, loaded)):
        ait.save(module, f"{number}.ait")
        assert same(ait.load(None, f"{number}.ait"), outputs(tuned))
    del loaded, module
    gc.collect()
    assert not list((tmp_path / "cache").rglob("files"))


@pytest.mark.parametrize("verify", ["full", "lazy"])
def test_a_file_may_go_once_it_is_loaded(tuned: Module, tmp_path: Path, verify: Any) -> None:
    path, wanted = tmp_path / "x.ait", outputs(tuned)
    ait.save(tuned, path)
    loaded = ait.load(None, path, verify=verify)
    path.write_bytes(b"something else")
    assert same(loaded, wanted)
    # Also over the place that it came from.
    ait.save(loaded, path)
    assert same(ait.load(None, path, verify=verify), wanted)


def test_loading_twice_into_one_module_and_once_into_two(tuned: Module, tmp_path: Path) -> None:
    path, wanted = tmp_path / "x.ait", outputs(tuned)
    ait.save(tuned, path)
    module = tiny_encoder()
    first = ait.load(module, path)
    assert ait.load(module, path) is first
    assert ait.load(first, path) is first
    other = ait.load(tiny_encoder(), path)
    assert other.name != first.name
    for each in (first, module, other):
        assert same(each, wanted)


def test_calls_go_on_while_a_module_is_saved_and_loaded(tuned: Module, tmp_path: Path) -> None:
    path, wanted = tmp_path / "x.ait", outputs(tuned)
    ait.save(tuned, path)
    fresh, stop, wrong = tiny_encoder(), threading.Event(), []

    def call() -> None:
        while not stop.is_set():
            try:
                # Until it is loaded the original answers, which rounds otherwise.
                for module in (tuned, fresh):
                    for got, expected in zip(outputs(module), wanted, strict=True):
                        torch.testing.assert_close(got, expected)
            except Exception as error:
                wrong.append(error)
                return

    threads = [threading.Thread(target=call) for _ in range(2)]
    for thread in threads:
        thread.start()
    for _ in range(3):
        ait.save(tuned, path)
        ait.load(fresh, path)
    stop.set()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_a_graph_that_the_original_won(tmp_path: Path) -> None:
    graphs = [(ONNXRuntimeBackend(), row_calls(double=False)), (TorchEagerBackend(), row_calls(double=True))]
    tuned = set_tuned(two_graphs(), graphs, tmp_path / "builds", "two")
    calls = [Sample((rows(2, 3),), {"double": double}) for double in (False, True)]
    wanted = answers(tuned, calls)
    ait.save(tuned, tmp_path / "two.ait")
    loaded = ait.load(two_graphs(), tmp_path / "two.ait", strict=True)
    assert all(map(torch.equal, answers(loaded, calls), wanted))
    assert loaded.stats().served == {"graph0": 1, "graph1": 1}
    with pytest.raises(AITuneEnvironmentError, match=r"graph1: TorchEager: it needs the original module"):
        ait.load(None, tmp_path / "two.ait")


def test_weights_are_put_into_inference_tensors_and_back(
    tuned: Module, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, wanted = tmp_path / "x.ait", outputs(tuned)
    ait.save(tuned, path, include_original_weights=True)
    with torch.inference_mode():
        module = tiny_encoder()
        module.linear.weight.mul_(2)
    doubled = module.linear.weight.clone()

    def fail(*args: Any, **kwargs: Any) -> Any:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Module, "from_dict", fail)
        with pytest.raises(KeyboardInterrupt):
            ait.load(module, path)
    assert torch.equal(module.linear.weight, doubled)
    assert same(ait.load(module, path), wanted)
    assert torch.equal(module.linear.weight * 2, doubled)


def test_no_place_for_temporary_files(tuned: Module, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "missing"))
    with pytest.raises(ArtifactError, match=r"temporary files can be made.*missing.*TMPDIR"):
        ait.save(tuned, tmp_path / "x.ait")
    assert not (tmp_path / "x.ait").exists()


@pytest.mark.parametrize("wrong", [{"strict": "no"}, {"allow_native_code": "false"}, {"storage": 3}])
def test_arguments_that_would_be_taken_for_something_else(tuned: Module, tmp_path: Path, wrong: Any) -> None:
    ait.save(tuned, tmp_path / "x.ait")
    with pytest.raises(AITuneUserInputError, match=f"{next(iter(wrong))} must"):
        ait.load(None, tmp_path / "x.ait", **wrong)


def test_a_module_without_values_is_refused(tuned: Module, tmp_path: Path) -> None:
    ait.save(tuned, tmp_path / "x.ait")
    with pytest.raises(ArtifactError, match="has other weights than it was tuned with"):
        ait.load(tiny_encoder().to("meta"), tmp_path / "x.ait")
    with pytest.raises(ArtifactError, match=r"dtype float16, expected .* float32"):
        ait.load(tiny_encoder().half(), tmp_path / "x.ait")


def test_a_module_in_training_mode_is_served_once_it_is_in_eval_mode(
    tuned: Module, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    ait.save(tuned, tmp_path / "x.ait")
    original = tiny_encoder().train()
    original.norm.eval()
    loaded = ait.load(original, tmp_path / "x.ait")
    assert "encoder is in training mode" in caplog.text
    assert [name for name, part in original.named_modules() if part.training] == ["", "embedding", "linear"]
    answers(loaded, CALLS)
    assert loaded.stats().fallbacks == {"training mode": 1}
    loaded.eval()
    assert same(loaded, outputs(tuned))
    assert sum(loaded.stats().served.values()) == 1
