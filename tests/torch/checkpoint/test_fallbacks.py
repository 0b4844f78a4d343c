"""What happens where a build does not fit: the next one, then the original; or an error."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from fuzzing import entries_of, pack, resealed
from tuned_parts import StoredEncoder, answers, encoder_on, tensors_of

import aitune.torch as ait
from aitune.artifact.manifest import decode_manifest
from aitune.exceptions import AITuneEnvironmentError, AITuneUserInputError, ArtifactError
from aitune.testing.tiny_models import tiny_encoder, tiny_encoder_call
from aitune.torch.backend.onnx_runtime_backend import ONNXRuntimeBackend
from aitune.torch.backend.registry import BackendRegistry, override_registry, registry
from aitune.torch.backend.torch_eager import TorchEagerBackend
from aitune.torch.module.wrapper_module import Module
from aitune.torch.task.alternatives import alternatives_of
from aitune.torch.task.outcome import BatchMeasurement, CandidateOutcome, GraphReport

CALLS = [tiny_encoder_call(2, 5, seed=1)]


def measured(*medians: float) -> tuple[BatchMeasurement, ...]:
    return tuple(
        BatchMeasurement(size, median, median, median, median, median, 10)
        for size, median in zip((1, 8), medians, strict=False)
    )


def outcome(key: str, *medians: float, **fields: Any) -> CandidateOutcome:
    defaults = {"backend": key, "description": key, "status": "ok", "stage": "measure", "recovery": "artifact"}
    return CandidateOutcome(key=key, measurements=measured(*medians), **{**defaults, "state": {}, **fields})


def report(*outcomes: CandidateOutcome, winner: str = "winner") -> GraphReport:
    return GraphReport("m", "graph0", "", {"strategy": "MaxThroughputStrategy"}, outcomes, (), winner, "fast", 1.0)


@pytest.fixture
def saved(tmp_path: Path, onnx_encoder: StoredEncoder, openvino_encoder: StoredEncoder) -> Path:
    """A file in which ONNX Runtime serves, and OpenVINO is the alternative."""
    tuned = onnx_encoder.tuned(tmp_path / "builds")
    chosen = tuned.module.graphs[0].backend
    other = openvino_encoder.restore(tmp_path / "other")
    chosen.tuning_report = report(
        outcome("eager", 1.0, 1.0, is_baseline=True, recovery="module"),
        outcome(chosen.key(), 0.5, 0.5),
        outcome(other.key(), 0.6, 0.6, backend="OpenVINO", description="OpenVINO", state=other.to_dict()),
        winner=chosen.key(),
    )
    ait.save(tuned, tmp_path / "encoder.ait")
    tuned.unwrap()
    return tmp_path / "encoder.ait"


def changed(path: Path, change: Callable[[Any], None]) -> Path:
    """Change the manifest as somebody would who knows the format."""
    entries = entries_of(path)
    manifest = msgspec.json.decode(dict(entries)["manifest.json"])
    change(manifest)
    text = msgspec.json.encode(manifest)
    decode_manifest(text)
    path.write_bytes(pack(resealed([(name, text if name == "manifest.json" else body) for name, body in entries])))
    return path


def builds(manifest: Any) -> Any:
    return manifest["modules"][0]["graphs"][0]["backends"]


def needs_other_processor(manifest: Any, numbers: tuple[int, ...] = (0,)) -> None:
    for number in numbers:
        builds(manifest)[number]["requirements"]["processor_features"] = ["avx1024"]


def serving(wrapper: Module) -> str:
    return str(wrapper.module.graphs[0].backend.name)


def test_without_trouble_the_first_build_serves(saved: Path, caplog: pytest.LogCaptureFixture) -> None:
    loaded = ait.load(tiny_encoder(), saved, strict=True)
    assert serving(loaded) == "ONNXRuntime"
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


def test_a_build_for_another_processor_is_refused_before_it_is_touched(
    saved: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    changed(saved, needs_other_processor)

    def touched(*args: Any) -> Any:
        raise AssertionError("the build was touched")

    monkeypatch.setattr(ONNXRuntimeBackend, "from_dict", touched)
    loaded = ait.load(tiny_encoder(), saved)
    assert serving(loaded) == "OpenVINO"
    assert "a processor with avx1024, which this one lacks" in caplog.text
    wanted = tensors_of(answers(tiny_encoder(), CALLS)[0])
    torch.testing.assert_close(tensors_of(answers(loaded, CALLS)[0]), wanted)


def test_when_nothing_fits_the_original_runs(saved: Path, caplog: pytest.LogCaptureFixture) -> None:
    changed(saved, lambda manifest: needs_other_processor(manifest, (0, 1)))
    module = tiny_encoder()
    loaded = ait.load(module, saved)
    assert serving(loaded) == "TorchEager"
    assert "the original module runs such calls" in caplog.text
    wanted = tensors_of(answers(tiny_encoder(), CALLS)[0])
    assert all(map(torch.equal, tensors_of(answers(loaded, CALLS)[0]), wanted))


def test_strict_raises_and_leaves_the_module_alone(saved: Path) -> None:
    changed(saved, needs_other_processor)
    module = tiny_encoder()
    with pytest.raises(AITuneEnvironmentError, match="avx1024"):
        ait.load(module, saved, strict=True)
    assert set(vars(module)) == set(vars(tiny_encoder()))


def test_without_a_module_nothing_is_left_to_fall_back_to(saved: Path) -> None:
    changed(saved, lambda manifest: needs_other_processor(manifest, (0, 1)))
    with pytest.raises(AITuneEnvironmentError, match=r"give ait\.load the original module"):
        ait.load(None, saved)


def test_a_package_that_is_missing(saved: Path, caplog: pytest.LogCaptureFixture) -> None:
    missing = [
        dataclasses.replace(entry, required_packages=("no_such_package",)) if entry.name == "ONNXRuntime" else entry
        for entry in registry.entries
    ]
    with override_registry(BackendRegistry(missing)):
        assert serving(ait.load(tiny_encoder(), saved)) == "OpenVINO"
    assert "no_such_package" in caplog.text


def test_a_backend_that_is_not_registered(saved: Path, caplog: pytest.LogCaptureFixture) -> None:
    left = BackendRegistry(entry for entry in registry.entries if entry.name != "ONNXRuntime")
    with override_registry(left):
        assert serving(ait.load(tiny_encoder(), saved)) == "OpenVINO"
    assert "no backend named 'ONNXRuntime'" in caplog.text


def test_a_build_that_cannot_be_loaded(
    saved: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(self: Any) -> None:
        raise RuntimeError("the runtime does not like it")

    monkeypatch.setattr(ONNXRuntimeBackend, "_activate", fail)
    assert serving(ait.load(tiny_encoder(), saved)) == "OpenVINO"
    assert "the runtime does not like it" in caplog.text


def test_native_code_is_refused_where_it_is_not_allowed(saved: Path, caplog: pytest.LogCaptureFixture) -> None:
    changed(saved, lambda manifest: builds(manifest)[0].update(native_code=True))
    assert serving(ait.load(tiny_encoder(), saved)) == "ONNXRuntime"
    assert serving(ait.load(tiny_encoder(), saved, allow_native_code=False)) == "OpenVINO"
    assert "allow_native_code=False forbids" in caplog.text


def test_a_file_that_hides_native_code_does_not_get_past(saved: Path) -> None:
    def disguise(manifest: Any) -> None:
        builds(manifest)[0].update(name="TorchInductorAot", native_code=False)
        del builds(manifest)[1]
        manifest["members"] = [
            member
            for member in manifest["members"]
            if any(p["member"] == member["sha256"] for f in builds(manifest)[0]["files"] for p in f["parts"])
        ]

    entries = entries_of(saved)
    manifest = msgspec.json.decode(dict(entries)["manifest.json"])
    disguise(manifest)
    kept = {"members/" + member["sha256"] for member in manifest["members"]} | {"manifest.json", "seal.json"}
    text = msgspec.json.encode(manifest)
    saved.write_bytes(pack(resealed([(n, text if n == "manifest.json" else c) for n, c in entries if n in kept])))
    with pytest.raises(AITuneEnvironmentError, match="allow_native_code=False forbids"):
        ait.load(None, saved, allow_native_code=False)


def test_a_damaged_alternative_is_found_by_full_verification_alone(saved: Path) -> None:
    content = bytearray(saved.read_bytes())
    content[content.index(b"<net name=") + 20] ^= 1
    saved.write_bytes(content)
    module = tiny_encoder()
    with pytest.raises(ArtifactError, match="is damaged: member"):
        ait.load(module, saved)
    assert set(vars(module)) == set(vars(tiny_encoder()))
    assert serving(ait.load(module, saved, verify="lazy")) == "ONNXRuntime"


def test_a_damaged_build_is_no_reason_to_take_the_next_one(saved: Path) -> None:
    content = bytearray(saved.read_bytes())
    content[content.index(b"input0") + 2] ^= 1
    saved.write_bytes(content)
    for verify in ("full", "lazy"):
        with pytest.raises(ArtifactError, match="is damaged: member"):
            ait.load(tiny_encoder(), saved, verify=verify)


def test_alternatives_are_those_that_came_through_and_are_no_slower_than_the_original() -> None:
    outcomes = (
        outcome("eager", 1.0, 8.0, is_baseline=True, recovery="module"),
        outcome("winner", 0.4, 3.0),
        outcome("slow", 1.1, 8.0),
        outcome("third", 0.9, 5.0),
        outcome("second", 0.5, 3.0),
        outcome("compiled again", 0.1, 0.1, recovery="compile"),
        outcome("wrong", 0.1, 0.1, status="rejected"),
        outcome("not stored", 0.1, 0.1, state=None),
        outcome("not measured"),
    )
    assert [each.key for each in alternatives_of(report(*outcomes), 5)] == ["second", "third"]
    assert [each.key for each in alternatives_of(report(*outcomes), 1)] == ["second"]
    assert alternatives_of(report(*outcomes), 0) == []


def test_keep_alternatives(tmp_path: Path, saved: Path) -> None:
    loaded = ait.load(tiny_encoder(), saved)
    with pytest.raises(AITuneUserInputError, match="keep_alternatives must be an integer of at least 0"):
        ait.save(loaded, tmp_path / "x.ait", keep_alternatives=-1)


def test_an_original_that_was_kept_needs_the_module(tmp_path: Path) -> None:
    tuned = encoder_on(TorchEagerBackend(), tmp_path / "builds")
    ait.save(tuned, tmp_path / "x.ait")
    with pytest.raises(AITuneEnvironmentError, match="it needs the original module"):
        ait.load(None, tmp_path / "x.ait")
    other = tiny_encoder()
    with torch.no_grad():
        other.linear.weight.add_(1)
    assert serving(ait.load(other, tmp_path / "x.ait")) == "TorchEager"
    assert not torch.equal(answers(other, CALLS)[0]["hidden"], answers(tiny_encoder(), CALLS)[0]["hidden"])


@pytest.mark.parametrize("device_map", ["cpu", torch.device("cpu"), {"encoder": "cpu"}])
def test_a_device_map(saved: Path, device_map: Any) -> None:
    assert serving(ait.load(tiny_encoder(), saved, device_map=device_map, strict=True)) == "ONNXRuntime"


def test_a_device_map_that_fits_nothing(saved: Path) -> None:
    with pytest.raises(AITuneEnvironmentError, match="built for cpu and cannot serve on cuda"):
        ait.load(tiny_encoder(), saved, device_map="cuda:0", strict=True)
    with pytest.raises(ArtifactError, match="device_map names 'decoder'"):
        ait.load(tiny_encoder(), saved, device_map={"decoder": "cpu"})
    for wrong in ("abacus", 10**30, {"encoder": None}):
        with pytest.raises(AITuneUserInputError, match="device_map must be a device"):
            ait.load(tiny_encoder(), saved, device_map=wrong)  # type: ignore[arg-type]
