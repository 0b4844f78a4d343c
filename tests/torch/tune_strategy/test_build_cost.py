import json
import sys

import pytest
import torch

from aitune.testing.fakes import FakeBackend
from aitune.torch.task.outcome import CandidateOutcome
from aitune.torch.tune_strategy import build_cost
from aitune.torch.tune_strategy.build_cost import BuildCosts, ModelSize, UsualCost, load_packages
from aitune.torch.tune_strategy.cost_history import CostHistory

SMALL, LARGE = ModelSize(10, 1.0), ModelSize(200, 500.0)


class Named(FakeBackend):
    """A fake that is known under the name of another backend."""

    def __init__(self, name, label="plain"):
        super().__init__(label)
        self._named = name

    @property
    def name(self):
        return self._named

    def describe(self):
        return f"{self.name}({self.label})"


@pytest.fixture(autouse=True)
def _usual(monkeypatch):
    table = {"Cheap": UsualCost(1.0, 0.1, 0.01), "Dear": UsualCost(10.0, 0.5, 0.0)}
    monkeypatch.setattr(build_cost, "USUAL_COSTS", table)


def costs(size=SMALL, history=None):
    return BuildCosts(size, history or CostHistory())


def seen(backend, build, check=0.0, measure=0.0, status="ok", is_baseline=False):
    return CandidateOutcome(
        backend, backend, f"{backend}(plain)", status, "measure", build_seconds=build, check_seconds=check,
        measure_seconds=measure, is_baseline=is_baseline,
    )  # fmt: skip


def test_before_anything_was_built_the_size_of_the_model_decides():
    assert costs(SMALL).build_seconds(Named("Cheap")) == pytest.approx(1.0 + 1.0 + 0.01)
    assert costs(LARGE).build_seconds(Named("Cheap")) == pytest.approx(1.0 + 20.0 + 5.0)
    assert costs(LARGE).build_seconds(Named("Mine")) == pytest.approx(20.0)


def test_the_size_of_a_module():
    net = torch.nn.Sequential(torch.nn.Linear(10, 10), torch.nn.Sequential(torch.nn.ReLU(), torch.nn.BatchNorm1d(10)))
    size = ModelSize.of(net)
    assert size.parts == 3
    # Weights and biases, statistics of the norm, and its int64 counter.
    assert size.megabytes == pytest.approx((110 * 4 + 40 * 4 + 8) / 1e6)


def test_builds_of_this_run_set_the_pace():
    ran = [seen("Cheap", 2 * 2.01)]
    assert costs().build_seconds(Named("Dear"), ran) == pytest.approx(2 * 15.0)


def test_the_same_backend_with_other_options_is_expected_to_take_what_it_took():
    assert costs().build_seconds(Named("Cheap", "other"), [seen("Cheap", 40.0)]) == 40.0


def test_a_build_that_failed_at_once_and_the_baseline_say_nothing():
    ran = [seen("Dear", 0.0, status="failed"), seen("Cheap", 0.4, is_baseline=True)]
    assert costs().build_seconds(Named("Cheap"), ran) == costs().build_seconds(Named("Cheap"))


def test_imports_that_are_still_to_come_are_added_and_done_before_the_build(monkeypatch):
    monkeypatch.setitem(build_cost.USUAL_COSTS, "Heavy", UsualCost(1.0, packages=("wave",), import_seconds=7.0))
    monkeypatch.delitem(sys.modules, "wave", raising=False)
    assert costs().build_seconds(Named("Heavy")) == pytest.approx(8.0)
    load_packages(Named("Heavy"))
    assert "wave" in sys.modules
    assert costs().build_seconds(Named("Heavy")) == pytest.approx(1.0)


def test_a_package_that_is_not_there_is_not_this_modules_to_report(monkeypatch):
    monkeypatch.setitem(build_cost.USUAL_COSTS, "Gone", UsualCost(1.0, packages=("no_such_package_of_ours",)))
    load_packages(Named("Gone"))


def test_a_trial_costs_what_it_cost_others_and_before_that_what_the_original_says():
    original = seen("TorchEager", 0.0, measure=10.0, is_baseline=True)
    assert costs().trial_seconds([], 0.0) == pytest.approx(3.0)
    assert costs().trial_seconds([original], 5.0) == pytest.approx(15.5)
    assert costs().trial_seconds([original, seen("Cheap", 1.0, 1.0, 2.0)], 5.0) == pytest.approx(3.0)


def test_all_that_is_cheap_keeps_the_order_of_the_list():
    backends = [Named("Dear"), Named("Cheap"), Named("Mine"), Named("Cheap", "other")]
    assert sorted(backends, key=costs().rank) == [backends[1], backends[3], backends[0], backends[2]]
    assert costs().rank(backends[1]) == 8.0


def test_the_reason_says_what_it_would_have_cost():
    assert costs().why_no_time(Named("Dear"), [], None) is None
    assert costs().why_no_time(Named("Dear"), [], 18.5) is None
    expected = "not begun: it would take about 18 s, and 12 s of the time budget are left"
    assert costs().why_no_time(Named("Dear"), [], 12.2) == expected
    assert costs().why_no_time(Named("Dear"), [], -3.0).endswith("0 s of the time budget are left")


def test_what_a_build_took_is_remembered_for_the_next_run(tmp_path):
    path = tmp_path / "cache" / "costs.json"
    costs(SMALL, CostHistory(path)).learn(seen("Cheap", 3 * 2.01))
    later = costs(LARGE, CostHistory(path))
    assert later.build_seconds(Named("Cheap")) == pytest.approx(3 * 26.0)
    assert later.build_seconds(Named("Cheap", "other options")) == pytest.approx(3 * 26.0)
    assert later.build_seconds(Named("Dear")) == pytest.approx(10.0 + 100.0)
    assert [entry.name for entry in path.parent.iterdir()] == ["costs.json"]


def test_what_never_came_to_a_build_is_not_remembered():
    history = CostHistory()
    costs(history=history).learn(seen("Cheap", 0.01))
    assert history.factor("Cheap") == 1.0


def test_a_longer_build_counts_more_than_a_shorter_one():
    up, down = CostHistory(), CostHistory()
    for history, later in ((up, 4.0), (down, 0.25)):
        history.learn(1.0, "a")
        history.learn(later, "a")
    assert up.factor("a") == pytest.approx(2.0)
    assert down.factor("a") == pytest.approx(4.0**-0.2)


UNUSABLE = [
    "",
    "{",
    "[1]",
    '{"a": "x"}',
    '{"a": -1}',
    '{"a": true}',
    '{"a": 1e999}',
    '{"a": 1%s}' % ("0" * 400),
    "[" * 10**5,
]


@pytest.mark.parametrize("text", UNUSABLE, ids=lambda text: text[:20])
def test_a_file_that_says_nothing_usable_is_as_good_as_none(tmp_path, text):
    path = tmp_path / "costs.json"
    path.write_text(text)
    history = CostHistory(path)
    assert history.factor("a") == 1.0
    history.learn(2.0, "a")
    assert json.loads(path.read_text())["a"] == pytest.approx(2.0)


def test_a_folder_that_cannot_be_written_costs_nothing(tmp_path):
    (tmp_path / "file").write_text("")
    history = CostHistory(tmp_path / "file" / "costs.json")
    history.learn(2.0, "a")
    assert history.factor("a") == 2.0
