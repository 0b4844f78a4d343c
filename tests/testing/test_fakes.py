from __future__ import annotations

from pathlib import Path

import pytest
import torch

from aitune.events import RunStarted, Warned
from aitune.exceptions import ArtifactError, BuildError
from aitune.testing import fakes
from aitune.testing.graphs import call, record_graph
from aitune.testing.tiny_models import TinyMLP, seeded


def built(backend: fakes.FakeBackend, folder: Path) -> fakes.FakeBackend:
    module = seeded(TinyMLP)
    graph_spec, data = record_graph(module, [call(torch.rand(3, 8))])
    backend.build(module, graph_spec, data, "cpu", folder)
    return backend


@pytest.mark.parametrize(
    ("alter", "is_as_expected"),
    [
        (None, torch.equal),
        (fakes.add_offset, lambda got, right: torch.allclose(got, right + 0.01)),
        (fakes.swap_first_rows, lambda got, right: torch.equal(got, right[[1, 0, 2]])),
        (fakes.to_float16, lambda got, right: got.dtype is torch.float16),
        (fakes.round_to_float16, lambda got, right: got.dtype is torch.float32 and not torch.equal(got, right)),
        (fakes.constant, lambda got, right: torch.equal(got, torch.ones(3, 4))),
    ],
)
def test_fakes_are_wrong_in_the_way_they_say(tmp_path: Path, alter: object, is_as_expected: object) -> None:
    backend = built(fakes.FakeBackend(alter=alter), tmp_path)  # type: ignore[arg-type]
    backend.activate()
    x = torch.rand(3, 8)
    assert is_as_expected(backend.infer(x), seeded(TinyMLP)(x).detach())  # type: ignore[operator]


def test_fakes_fail_at_the_stage_they_say(tmp_path: Path) -> None:
    with pytest.raises(BuildError, match="fails at build on purpose"):
        built(fakes.FakeBackend(fails_at="build"), tmp_path)
    with pytest.raises(RuntimeError, match="fails at activate"):
        built(fakes.FakeBackend(fails_at="activate"), tmp_path).activate()
    failing = built(fakes.FakeBackend("odd", fails_at="infer"), tmp_path)
    failing.activate()
    with pytest.raises(RuntimeError, match="odd fails at infer"):
        failing.infer(torch.rand(3, 8))
    module = seeded(TinyMLP)
    assert fakes.FakeBackend(fails_at="can_run").can_run(module, failing.graph_spec, torch.device("cpu"))
    assert failing.can_run(module, failing.graph_spec, torch.device("cpu")) is None
    with pytest.raises(ArtifactError):
        fakes.FakeBackend.from_dict(module, failing.to_dict())


def test_listener_remembers_events_by_kind() -> None:
    listener = fakes.CollectingListener()
    events = [RunStarted(("m",), (1,)), Warned("careful")]
    for event in events:
        listener.on_event(event)
    assert listener.events == events
    assert listener.of(Warned) == [Warned("careful")]
