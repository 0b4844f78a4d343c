"""A strategy for a module, or one for each of its graphs, as ``ait.Module`` and ``ait.tune`` take them."""

import pytest
import torch
from strategy_parts import ORIGINAL, ByTable, fakes

import aitune.torch as ait
from aitune.exceptions import AITuneUserInputError, TuningError


class TwoWays(torch.nn.Module):
    """Two kinds of calls: with and without a scale."""

    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(4, 3)

    def forward(self, x, scale=None):
        y = self.linear(x)
        return y if scale is None else y * scale


def strategy(label, score=2.0):
    return ByTable({ORIGINAL: 1.0, f"Fake({label})": score}, fakes(label))


def winners(default=None, **settings):
    model = ait.Module(TwoWays().eval(), "two", **settings)

    def both(x):
        model(x)
        model(x, x[:, :3])

    data = [torch.randn(4) for _ in range(4)]
    report = ait.tune(both, data, batch_sizes=[1, 2], strategy=default, ignore_failing_modules=False)
    return [graph.winner for graph in report.module("two").graphs]


def test_one_for_all_graphs():
    assert winners(strategy=strategy("a")) == ["Fake-a", "Fake-a"]


def test_a_list_in_the_order_of_the_graphs():
    assert winners(strategies=[strategy("a"), strategy("b")]) == ["Fake-a", "Fake-b"]


def test_a_mapping_by_graph_name():
    assert winners(strategies={"graph1": strategy("b"), "graph0": strategy("a")}) == ["Fake-a", "Fake-b"]


@pytest.mark.parametrize("strategies", [[strategy("a")], {"graph0": strategy("a")}], ids=["list", "mapping"])
def test_graphs_without_one_take_that_of_the_run(strategies):
    assert winners(strategy("rest"), strategies=strategies) == ["Fake-a", "Fake-rest"]


def test_that_of_the_module_comes_before_that_of_the_run():
    assert winners(strategy("rest"), strategy=strategy("own")) == ["Fake-own", "Fake-own"]


def test_the_strategy_of_the_run_is_not_copied_and_keeps_the_results_of_the_last_graph():
    mine = strategy("a")
    assert winners(mine) == ["Fake-a", "Fake-a"]
    assert mine.report.graph == "graph1"
    assert [outcome.description for outcome in mine.backend_results] == [ORIGINAL, "Fake(a)"]
    assert mine.perf_validation_results[0].speedup == 2.0


def test_settings_of_the_run_reach_a_strategy_of_the_module_and_leave_it_again():
    class Curious(ByTable):
        def _measure(self, backend, name, graph_spec, data, profiling_cfg):
            self.seen = (self._context.batch_sizes, profiling_cfg.batch_sizes)
            return super()._measure(backend, name, graph_spec, data, profiling_cfg)

    own = Curious({ORIGINAL: 1.0, "Fake(a)": 2.0}, fakes("a"))
    winners(strategy=own)
    assert own.seen == ((1, 2), (1, 2))
    assert own._context.batch_sizes is None


def test_both_at_once_are_an_error():
    with pytest.raises(AITuneUserInputError, match="not both"):
        ait.Module(TwoWays().eval(), "two", strategy=strategy("a"), strategies=[strategy("b")])


@pytest.mark.parametrize("failing", [["graph1"], ["graph0", "graph1"]], ids=["one", "all"])
def test_a_graph_that_cannot_be_tuned_is_in_the_report_with_what_was_seen(failing):
    class Wrong(ByTable):
        def _resolve_winner(self, best):
            raise TuningError("nothing suits")

    by_graph = {
        name: (Wrong if name in failing else ByTable)({ORIGINAL: 1.0, "Fake(a)": 0.5}, fakes("a"))
        for name in ("graph0", "graph1")
    }
    model = ait.Module(TwoWays().eval(), "two", strategies=by_graph)

    def both(x):
        model(x)
        model(x, x[:, :3])

    report = ait.tune(both, [torch.randn(4) for _ in range(4)], batch_sizes=[1, 2])
    assert report.module("two").status == ("failed" if len(failing) == 2 else "original kept")
    for graph in report.module("two").graphs:
        assert (graph.winner is None) is (graph.graph in failing)
        assert ("nothing suits" in graph.reason) is (graph.graph in failing)
        assert [outcome.status for outcome in graph.outcomes] == ["ok", "ok"]
    assert report.summary().count("nothing suits") == len(failing)
    assert type(report).from_json(report.to_json()) == report


def test_one_strategy_may_serve_several_modules_one_after_the_other():
    shared = strategy("a")
    first = ait.Module(TwoWays().eval(), "first", strategy=shared)
    second = ait.Module(TwoWays().eval(), "second", strategy=shared)

    def both(x):
        first(x)
        second(x)

    report = ait.tune(both, [torch.randn(4) for _ in range(4)], batch_sizes=[1, 2])
    assert [module.status for module in report.modules] == ["tuned", "tuned"]
    assert shared.report.module == "second"
