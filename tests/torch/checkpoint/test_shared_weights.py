from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from small_artifacts import backend, manifest
from torch import nn
from tuned_parts import answers, set_tuned, tensors_of

import aitune.torch as ait
from aitune.artifact.manifest import FileRecord
from aitune.artifact.reading import Artifact
from aitune.artifact.writing import ArtifactWriter
from aitune.testing.tiny_models import seeded
from aitune.torch.backend.openvino_backend import OpenVINOBackend
from aitune.torch.checkpoint import shared_weights
from aitune.torch.checkpoint.shared_weights import SharedWeights
from aitune.torch.module.sample import Sample


class Wide(nn.Module):
    """Two weights of 256 KiB each, one of them under two names."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(256, 256)
        self.second = nn.Linear(256, 256)
        self.third = nn.Linear(256, 256)
        self.third.weight = self.first.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.third(torch.tanh(self.second(torch.tanh(self.first(x)))))


WEIGHT = 256 * 256 * 4


def raw(tensor: torch.Tensor) -> bytes:
    return tensor.detach().numpy().tobytes()


def stored(folder: Path, files: list[FileRecord], writer: ArtifactWriter) -> tuple[dict[str, bytes], int]:
    path = folder / "x.ait"
    with path.open("wb") as stream:
        writer.write(stream, manifest(writer, backend(tuple(files))))
    with Artifact(path) as artifact:
        (folder / "out").mkdir()
        artifact.extract(files, folder / "out")
        members = sum(member.size for member in artifact.manifest.members)
    return {file.path: (folder / "out" / file.path).read_bytes() for file in files}, members


PIECES = st.lists(st.sampled_from(["first", "second", "noise", "byte", "half"]), max_size=6)


@given(st.lists(PIECES, min_size=1, max_size=3), st.sampled_from([100_000, 300_000, 16 << 20]))
@settings(max_examples=25, deadline=None)
def test_files_come_back_whatever_they_share(
    tmp_path_factory: pytest.TempPathFactory, files: list[list[str]], largest: int
) -> None:
    folder = tmp_path_factory.mktemp("shared")
    module = seeded(Wide)
    pieces = {
        "first": raw(module.first.weight), "second": raw(module.second.weight), "noise": b"noise" * 5000,
        "byte": b"\1", "half": raw(module.first.weight)[: WEIGHT // 2],
    }  # fmt: skip
    contents = {f"file{n}": b"".join(pieces[name] for name in names) for n, names in enumerate(files)}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shared_weights, "LARGEST_MEMBER", largest)
        writer, weights, records = ArtifactWriter(), SharedWeights(module), []
        for name, content in contents.items():
            (folder / name).write_bytes(content)
            records.append(weights.add_file(writer, folder / name, name))
    found, members = stored(folder, records, writer)
    assert found == contents
    assert members <= sum(map(len, contents.values()))


def test_a_weight_is_stored_once(tmp_path: Path) -> None:
    module = seeded(Wide)
    one, two = raw(module.first.weight), raw(module.second.weight)
    contents = {"one": b"head" + one + b"between" + two + b"tail", "two": two + b"other" + one}
    writer, weights, records = ArtifactWriter(), SharedWeights(module), []
    for name, content in contents.items():
        (tmp_path / name).write_bytes(content)
        records.append(weights.add_file(writer, tmp_path / name, name))
    found, members = stored(tmp_path, records, writer)
    assert found == contents
    assert members == len(contents["one"]) + len(b"other")
    # The first is in one piece.
    assert len(records[0].parts) == 1


def test_weights_of_any_form_are_looked_for_or_passed_over(tmp_path: Path) -> None:
    module = nn.Module()
    values = torch.randn(20_000, dtype=torch.complex64)
    for name, tensor in {"conj": values.conj(), "sparse": values.to_sparse(), "meta": values.to("meta")}.items():
        module.register_buffer(name, tensor)
    writer, weights = ArtifactWriter(), SharedWeights(module)
    for name in ("one", "two"):
        (tmp_path / name).write_bytes(name.encode() + raw(values.conj().resolve_conj()))
    records = [weights.add_file(writer, tmp_path / name, name) for name in ("one", "two")]
    _, members = stored(tmp_path, records, writer)
    assert members == values.nbytes + len("onetwo")


def test_an_openvino_model_and_the_original_weights_share_theirs(tmp_path: Path) -> None:
    calls = [Sample((torch.randn(size, 256),), {}) for size in (2, 3)]
    tuned = set_tuned(seeded(Wide), [(OpenVINOBackend(), calls)], tmp_path / "builds", "wide")
    wanted = tensors_of(answers(tuned, calls))
    ait.save(tuned, tmp_path / "without.ait")
    ait.save(tuned, tmp_path / "with.ait", include_original_weights=True)
    sizes = [(tmp_path / name).stat().st_size for name in ("without.ait", "with.ait")]
    assert sizes[0] > 2 * WEIGHT
    assert sizes[1] - sizes[0] < WEIGHT // 4
    other = seeded(Wide, seed=1)
    loaded = ait.load(other, tmp_path / "with.ait", strict=True)
    assert all(map(torch.equal, tensors_of(answers(loaded, calls)), wanted))
    assert torch.equal(other.second.weight, seeded(Wide).second.weight)
    assert other.third.weight is other.first.weight
