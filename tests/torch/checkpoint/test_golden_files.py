"""Files of every format version so far are still loaded, and answer as they did."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from make_golden_run import SAMPLE, SECRET
from torch import nn
from tuned_parts import answers, tensors_of

import aitune.torch as ait
from aitune.artifact.manifest import FORMAT_VERSION
from aitune.artifact.reading import Artifact
from aitune.testing.tiny_models import TinyEncoder, tiny_encoder

DATA = Path(__file__).resolve().parents[2] / "artifact" / "data"
GOLDEN = sorted(DATA.glob("golden_v*.ait"))


def test_there_is_a_file_of_every_version() -> None:
    assert [path.stem for path in GOLDEN] == [f"golden_v{version}" for version in range(1, FORMAT_VERSION + 1)]
    assert all(path.stat().st_size < 100 * 1024 for path in GOLDEN)


def expected(path: Path) -> list[torch.Tensor]:
    return [torch.tensor(values) for values in json.loads(path.with_suffix(".json").read_text())]


@pytest.mark.parametrize("path", GOLDEN, ids=lambda path: path.stem)
def test_it_is_whole_and_signed(path: Path) -> None:
    signing = pytest.importorskip("aitune.artifact.signing")
    pytest.importorskip("cryptography")
    with Artifact(path, signing.public_bytes_of(SECRET)) as artifact:
        artifact.verify()
        graph = artifact.manifest.modules[0].graphs[0]
    assert [backend.name for backend in graph.backends] == ["ONNXRuntime", "OpenVINO"]
    assert graph.evidence is not None
    assert graph.evidence.comparisons[0].verdict == "faster"


@pytest.mark.parametrize("given", ["none", "same weights", "other weights"])
@pytest.mark.parametrize("path", GOLDEN, ids=lambda path: path.stem)
def test_it_answers_as_it_did(path: Path, given: str) -> None:
    def module() -> nn.Module | None:
        return {"none": lambda: None, "same weights": tiny_encoder, "other weights": lambda: TinyEncoder().eval()}[
            given
        ]()

    loaded = ait.load(module(), path)
    # A newer runtime may round otherwise.
    torch.testing.assert_close(tensors_of(answers(loaded, [SAMPLE])[0]), expected(path))
    assert sum(loaded.stats().served.values()) == 1
