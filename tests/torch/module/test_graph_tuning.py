from pathlib import Path
from typing import Any

import pytest
import torch
from serving_fakes import FakeTuner, call, record

from aitune.exceptions import AITuneUserInputError, BuildError
from aitune.torch.module.graph_tuning import GraphTuning, check_tuners


class Flagged(torch.nn.Module):
    def forward(self, x: torch.Tensor, flag: int) -> torch.Tensor:
        return x + flag


@pytest.fixture
def graphs() -> Any:
    wrapped = record(Flagged().eval(), call(torch.zeros(1), 0), call(torch.zeros(1), 1))
    return wrapped.recorded_graphs()


def tuning(folder: Path, strategy: Any = None, strategies: Any = None) -> GraphTuning:
    return GraphTuning(Flagged(), "m", torch.device("cpu"), folder, strategy, strategies)


def test_every_graph_gets_its_backend(graphs: Any, tmp_path: Path) -> None:
    tuner = FakeTuner()
    tuned = tuning(tmp_path, tuner).tune(graphs)
    assert [(graph.spec.name, graph.backend) for graph in tuned] == list(
        zip(["graph0", "graph1"], tuner.made, strict=True)
    )


def test_a_strategy_of_a_graph_wins_over_the_one_for_all(graphs: Any, tmp_path: Path) -> None:
    general, special = FakeTuner(), FakeTuner()
    tuning(tmp_path, general, {"graph1": special}).tune(graphs)
    assert [fake.graph_spec.name for fake in general.made] == ["graph0"]
    assert [fake.graph_spec.name for fake in special.made] == ["graph1"]


def test_a_strategy_for_a_graph_that_does_not_exist_is_an_error(graphs: Any, tmp_path: Path) -> None:
    with pytest.raises(AITuneUserInputError, match=r"names grpah1; the recorded graphs are graph0, graph1"):
        tuning(tmp_path, FakeTuner(), {"grpah1": FakeTuner()}).tune(graphs)


@pytest.mark.parametrize("number", [3, 4])
def test_more_strategies_than_graphs_are_an_error(graphs: Any, tmp_path: Path, number: int) -> None:
    with pytest.raises(AITuneUserInputError, match=rf"{number} strategies for 2 recorded graphs \(graph0, graph1\)"):
        tuning(tmp_path, FakeTuner(), [FakeTuner()] * number).tune(graphs)


@pytest.mark.parametrize("number", [0, 1, 2])
def test_fewer_strategies_than_graphs_leave_the_rest_to_the_default(graphs: Any, tmp_path: Path, number: int) -> None:
    assert len(tuning(tmp_path, FakeTuner(), [FakeTuner()] * number).tune(graphs)) == 2


@pytest.mark.parametrize(
    ("strategy", "strategies", "part"),
    [
        (FakeTuner, None, r"give FakeTuner\(\)"),
        ("max", None, "'max'"),
        (None, "max", "'max'"),
        (None, 3, "3"),
        (None, [FakeTuner], r"give FakeTuner\(\)"),
        (None, {"graph0": None}, "None"),
    ],
)
def test_what_is_no_strategy_is_refused(strategy: Any, strategies: Any, part: str) -> None:
    with pytest.raises(AITuneUserInputError, match=part):
        check_tuners(strategy, strategies)


def test_a_failing_graph_is_left_out_with_a_warning(
    graphs: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tuned = tuning(tmp_path, FakeTuner(fails_for=["graph0"])).tune(graphs)
    assert [graph.spec.name for graph in tuned] == ["graph1"]
    assert "m graph0 runs on the original module: graph0 fails on purpose" in caplog.text


def test_when_all_fail_the_first_error_is_raised(graphs: Any, tmp_path: Path) -> None:
    with pytest.raises(BuildError, match="graph0 fails on purpose"):
        tuning(tmp_path, FakeTuner(fails_for=["graph0", "graph1"])).tune(graphs)
    with pytest.raises(AITuneUserInputError, match="no strategy for graph0"):
        tuning(tmp_path).tune(graphs)


def test_a_dry_run_tunes_nothing(graphs: Any, tmp_path: Path) -> None:
    tuner = FakeTuner()
    assert tuning(tmp_path, tuner).tune(graphs, dry_run=True) == []
    assert (tuner.dry, tuner.made) == (["graph0", "graph1"], [])
