"""A whole run on a clock that jumps ahead with every call of the module: slow calls that take no time to test."""

import time

import pytest
import torch

import aitune.torch as ait


class Clock:
    """Jumps ahead on top of the real clock; not kept by a module, whose state tuning puts back."""

    passed = 0.0
    calls = 0


@pytest.fixture(autouse=True)
def _clock(monkeypatch):
    monotonic, counter = time.monotonic, time.perf_counter_ns
    monkeypatch.setattr(time, "monotonic", lambda: monotonic() + Clock.passed)
    monkeypatch.setattr(time, "perf_counter_ns", lambda: counter() + round(Clock.passed * 1e9))
    monkeypatch.setattr(Clock, "passed", 0.0)
    monkeypatch.setattr(Clock, "calls", 0)


class Slow(torch.nn.Module):
    def __init__(self, seconds):
        super().__init__()
        self.linear = torch.nn.Linear(4, 3)
        self.seconds = seconds

    def forward(self, x):
        Clock.calls += 1
        Clock.passed += self.seconds * x.shape[0]
        return torch.tanh(self.linear(x))


@pytest.mark.parametrize("batch_sizes", [None, [1], [1, 2]], ids=["free", "one", "two"])
def test_calls_of_five_seconds_end_soon_after_a_budget_of_sixty(batch_sizes, tmp_path):
    net = Slow(5.0).eval()
    model = ait.Module(net, "slow")
    data = [torch.randn(4) for _ in range(40)]
    with ait.config.override(cache_dir=tmp_path):
        report = ait.tune(model, data, batch_sizes=batch_sizes, time_budget=60.0)
    assert Clock.passed <= 75.0
    (graph,) = report.modules[0].graphs
    assert graph.winner == "baseline"
    assert graph.reason == "the time budget left no time for any candidate"
    baseline, *candidates = graph.outcomes
    assert baseline.measurements[0].median_ms == pytest.approx(5000.0, rel=0.01)
    assert {outcome.status for outcome in candidates} == {"skipped"}
    assert all("5.0 s each, and" in outcome.reason for outcome in candidates)
    assert any("batches of the dataset were not run" in warning for warning in report.warnings)


class Endless(torch.utils.data.IterableDataset):
    def __iter__(self):
        while True:
            Clock.passed += 0.01  # to read a sample takes time, too
            yield torch.randn(4)


STREAMS = {
    "data set": Endless,
    "function": lambda: lambda size: torch.utils.data.DataLoader(Endless(), batch_size=size),
    "loader": lambda: torch.utils.data.DataLoader(Endless(), batch_size=2),
}


@pytest.mark.parametrize("kind", STREAMS)
def test_a_stream_without_an_end_ends_with_its_share_of_the_budget(kind, tmp_path):
    strategy = ait.MaxThroughputStrategy([])
    with ait.config.override(cache_dir=tmp_path):
        model = ait.Module(Slow(0.1).eval(), "net")
        report = ait.tune(model, STREAMS[kind](), strategy=strategy, time_budget=60.0)
    assert Clock.passed <= 60.0
    assert any("batches of the dataset were not run" in warning for warning in report.warnings)
    assert ("x: float32[2, 4]" if kind == "loader" else "batch0 1..") in report.modules[0].graphs[0].description


def test_a_smaller_last_batch_is_run_where_there_is_time_to_read_up_to_it(tmp_path):
    strategy = ait.MaxThroughputStrategy([])
    loader = torch.utils.data.DataLoader([torch.randn(4) for _ in range(39)], batch_size=2)
    with ait.config.override(cache_dir=tmp_path):
        report = ait.tune(ait.Module(Slow(5.0).eval(), "net"), loader, strategy=strategy, time_budget=60.0)
    assert "batch0 1..2" in report.modules[0].graphs[0].description


def test_a_budget_that_recording_does_not_touch_runs_every_batch(tmp_path):
    net = Slow(0.001).eval()
    strategy = ait.MaxThroughputStrategy([])
    with ait.config.override(cache_dir=tmp_path):
        report = ait.tune(
            ait.Module(net, "fast"), [torch.randn(4) for _ in range(8)], [2], strategy=strategy, time_budget=600.0
        )
    assert not [warning for warning in report.warnings if "were not run" in warning]
    assert Clock.calls >= 4 + 15
