"""The example of the guide runs as it stands there."""

import re
from pathlib import Path
from typing import Any

import pytest
import torch

import aitune.torch as ait
from aitune.testing.fakes import FakeBackend
from aitune.torch.config import config
from aitune.torch.module.registry import fresh_module_registry

GUIDE = (Path(__file__).parents[2] / "docs" / "strategies.md").read_text()
BLOCKS = re.findall(r"```python\n(.*?)```", GUIDE.partition("## Writing one")[2], re.DOTALL)
THE_CLASS, THE_METER, THE_USE = BLOCKS


@pytest.fixture(autouse=True)
def _own_surroundings(tmp_path):
    with fresh_module_registry(), config.override(cache_dir=tmp_path):
        yield


def names_of(*blocks) -> dict[str, Any]:
    names: dict[str, Any] = {"__name__": "guide"}
    for block in blocks:
        exec(compile(block, "docs/strategies.md", "exec"), names)
    return names


class Appetite(FakeBackend):
    """Uses up the joules that its label names for each sample."""

    used = 0.0

    def _infer(self, x):
        Appetite.used += float(self.label) * x.shape[0]
        return torch.nn.functional.linear(x, self._module.weight, self._module.bias)


class HungryNet(torch.nn.Linear):
    """Uses up one joule a sample."""

    def forward(self, x):
        Appetite.used += x.shape[0]
        return super().forward(x)


@pytest.mark.parametrize(
    ("appetites", "expected"),
    [
        (["4", "0.5"], "Fake(0.5)"),
        (["0.25", "0.5"], "Fake(0.25)"),
        (["0.99", "4"], "TorchEager"),
        (["2"], "TorchEager"),
    ],
)
def test_the_example_chooses_by_the_users_own_meter(appetites, expected):
    strategy_class = names_of(THE_CLASS)["MaxThroughputPerWattStrategy"]
    strategy = strategy_class(lambda: Appetite.used, backends=[Appetite(each) for each in appetites])
    model = ait.Module(HungryNet(4, 3).eval(), "net")
    data = [torch.randn(4) for _ in range(4)]
    report = ait.tune(model, data, batch_sizes=[1, 2], strategy=strategy, ignore_failing_modules=False)
    assert report.winner("net").description == expected
    speedups = [result.speedup for result in strategy.perf_validation_results]
    assert speedups == [pytest.approx(1 / float(each)) for each in appetites]


def test_the_example_runs_as_it_stands(monkeypatch, capsys):
    names = names_of(THE_CLASS, THE_METER)
    meant = names["MaxThroughputPerWattStrategy"]
    # The default candidates build for a minute with a compiler; one that is always there shows the same.
    monkeypatch.setitem(names, "MaxThroughputPerWattStrategy", lambda read: meant(read, backends=[FakeBackend("same")]))
    exec(compile(THE_USE, "docs/strategies.md", "exec"), names)
    output = capsys.readouterr().out
    assert "Fake(same)" in output
    assert "times as far on a joule" in output
    assert names["report"].module("mlp").status in ("tuned", "original kept")
    settings = names["strategy"].to_json_dict()
    assert settings["num_calls"] == 50
    assert settings["metric"] == "throughput per watt"


def test_every_strategy_that_the_guide_names_is_there():
    for name in set(re.findall(r"ait\.(\w+Strategy)", GUIDE)):
        assert isinstance(getattr(ait, name), type)
