import pytest
import torch
from strategy_parts import fakes

import aitune.torch as ait
from aitune.exceptions import AITuneUserInputError
from aitune.torch.backend.registry import registry
from aitune.torch.backend.threads import thread_budget, thread_counts
from aitune.torch.tune_strategy.thread_sweep import with_thread_counts


@pytest.fixture
def onnx():
    return registry.load("ONNXRuntime")


@pytest.mark.parametrize(("most", "counts"), [(1, (1,)), (2, (2, 1)), (3, (3, 1)), (4, (4, 2, 1)), (64, (64, 32, 1))])
def test_all_half_and_one(most, counts):
    assert thread_counts(most) == counts


def test_one_budget_for_all_unless_a_backend_has_its_own():
    with ait.config.override(num_threads=3):
        assert thread_budget(None) == 3
        assert thread_budget(5) == 5
    assert thread_budget(None) == torch.get_num_threads()


def test_candidates_with_threads_of_their_own_are_tried_with_fewer(onnx):
    (fake,) = fakes("a")
    with ait.config.override(num_threads=4):
        variants = with_thread_counts([fake, onnx()])
    assert variants[0] is fake
    assert [backend.config.num_threads for backend in variants[1:]] == [None, 2, 1]
    assert len({backend.key() for backend in variants}) == 4


def test_a_number_that_the_user_set_stays(onnx):
    chosen = onnx(type(onnx().config)(num_threads=2))
    with ait.config.override(num_threads=4):
        assert with_thread_counts([chosen]) == [chosen]


def test_every_shipped_strategy_sweeps_when_asked_and_says_so(onnx):
    made = [
        ait.MaxThroughputStrategy([onnx()], sweep_threads=True),
        ait.MinLatencyStrategy([onnx()], sweep_threads=True),
        ait.LatencyBudgetStrategy(5.0, [onnx()], sweep_threads=True),
        ait.FirstWinsStrategy([onnx()], sweep_threads=True),
        ait.OneBackendStrategy(onnx(), sweep_threads=True),
    ]
    with ait.config.override(num_threads=2):
        for strategy in made:
            assert strategy.to_json_dict()["sweep_threads"] is True
            assert len(strategy.to_json_dict()["backends"]) == 2
    assert len(ait.MaxThroughputStrategy([onnx()]).to_json_dict()["backends"]) == 1


def test_it_is_a_truth_value():
    with pytest.raises(AITuneUserInputError, match="sweep_threads"):
        ait.MaxThroughputStrategy(sweep_threads=2)


def test_each_number_of_threads_is_a_candidate_of_its_own(onnx, tmp_path):
    net = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU()).eval()
    strategy = ait.MinLatencyStrategy([onnx()], sweep_threads=True)
    with ait.config.override(cache_dir=tmp_path, num_threads=2):
        data = [torch.randn(8) for _ in range(2)]
        report = ait.tune(ait.Module(net, "net"), data, [1, 2], strategy=strategy, dry_run=True)
    described = [outcome.description for outcome in report.modules[0].graphs[0].outcomes]
    assert described == ["ONNXRuntime", "ONNXRuntime(num_threads=1)"]
    assert report.settings["num_threads"] == 2
