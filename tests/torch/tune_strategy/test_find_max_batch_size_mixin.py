import pytest
import torch
from strategy_parts import CPU, ORIGINAL, ByTable, TimedNet, context, fakes, graph_of, run, with_context

from aitune.exceptions import AITuneUserInputError, ProfilingError
from aitune.testing.fakes import FakeBackend
from aitune.testing.graphs import call, record_graph
from aitune.testing.simulated_machine import SimulatedMachine
from aitune.testing.tiny_models import CallCounter, InputChanger
from aitune.torch.tune_strategy.min_latency_strategy import MinLatencyStrategy
from aitune.torch.tune_strategy.mixin.find_max_batch_size_mixin import FindMaxBatchSizeMixin

SCORES = {ORIGINAL: 1.0, "Fake(a)": 2.0}


class Seen(ByTable):
    """Remembers what it was asked to measure, and how far the graph went."""

    def _measure(self, backend, name, graph_spec, data, profiling_cfg):
        self.seen = (graph_spec.get_max_batch_size(), profiling_cfg.batch_sizes)
        return super()._measure(backend, name, graph_spec, data, profiling_cfg)


def tuned(tmp_path, strategy, batch_sizes, module=None):
    machine = SimulatedMachine()
    # Throughput grows up to 64 samples a call and falls from there.
    net = module or TimedNet(machine, 0.001, 0.00001)
    if module is None:
        net.work = lambda batch: machine.work(0.001 + 0.00001 * max(0, batch - 64) ** 1.5)
    with_context(strategy, machine, batch_sizes=batch_sizes)
    run(strategy, tmp_path, net, (1, 2))
    return strategy


def test_without_named_batch_sizes_the_range_is_widened_as_far_as_it_pays(tmp_path):
    strategy = tuned(tmp_path, Seen(SCORES, fakes("a")), None)
    found = max(strategy.batch_size_search.measurements(), key=lambda m: m.throughput).batch_size
    assert found > 2
    assert strategy.seen[0] == found
    assert strategy.seen[1] == tuple(2**power for power in range(found.bit_length()))


def test_named_batch_sizes_are_not_second_guessed(tmp_path):
    strategy = tuned(tmp_path, Seen(SCORES, fakes("a")), (1, 2))
    assert strategy.batch_size_search is None
    assert strategy.seen == (2, (1, 2))


@pytest.mark.parametrize(("enable", "batch_sizes", "searched"), [(True, (1, 2), True), (False, None, False)])
def test_a_user_may_ask_for_it_or_forbid_it(tmp_path, enable, batch_sizes, searched):
    strategy = Seen(SCORES, fakes("a"))
    assert strategy.enable_find_max_batch_size(enable) is strategy
    tuned(tmp_path, strategy, batch_sizes)
    assert (strategy.batch_size_search is not None) is searched
    assert (strategy.seen[0] > 2) is searched


def test_lowest_latency_needs_no_search(tmp_path):
    assert tuned(tmp_path, MinLatencyStrategy([]), None).batch_size_search is None


def test_a_graph_without_a_batch_axis_is_left_alone(tmp_path):
    module = torch.nn.Linear(4, 3).eval()
    graph_spec, data = graph_of(module, (2,))
    strategy = Seen(SCORES, fakes("a"))
    strategy.use_context(context(batch_sizes=None))
    strategy.tune(module, "net", graph_spec, data, torch.device("cpu"), tmp_path)
    assert not graph_spec.batching
    assert strategy.batch_size_search is None
    assert strategy.seen == (1, (1,))


def test_the_search_runs_on_the_class_that_was_set_for_it_and_its_subclasses(tmp_path):
    built = []

    class Searching(FakeBackend):
        def _build(self, module, graph_spec, data, cache_dir):
            built.append(module)
            return super()._build(module, graph_spec, data, cache_dir)

    class Own(Seen):
        pass

    Own.set_find_max_batch_size_default_backend_class(Searching)
    tuned(tmp_path, Own(SCORES, fakes("a")), None)
    tuned(tmp_path, Seen(SCORES, fakes("a")), None)
    assert len(built) == 1
    Own.set_find_max_batch_size_default_backend_class(None)
    tuned(tmp_path, Own(SCORES, fakes("a")), None)
    assert len(built) == 1
    assert FindMaxBatchSizeMixin._find_max_batch_size_backend_class is None


def test_the_search_ends_where_memory_does(tmp_path):
    machine = SimulatedMachine()
    net = TimedNet(machine, 0.001, 0.00001)

    def work(batch):
        if batch > 100:
            raise MemoryError(f"{batch} samples do not fit")
        machine.work(0.001 + 0.00001 * batch)

    net.work = work
    strategy = with_context(Seen(SCORES, fakes("a")), machine, batch_sizes=None)
    run(strategy, tmp_path, net, (1, 2))
    # 64 fits and 128 does not; 96 is as close as it matters.
    assert strategy.seen == (96, (1, 2, 4, 8, 16, 32, 64, 96))
    assert "batch size 112 fails" in strategy.batch_size_search.stop_reason
    assert "112 samples do not fit" in strategy.batch_size_search.stop_reason


def test_a_model_that_does_not_even_fit_once_is_an_error(tmp_path):
    machine = SimulatedMachine()
    net = TimedNet(machine)
    graph_spec, data = graph_of(net, (1, 2))

    def work(batch):
        raise MemoryError("not one")

    net.work = work
    strategy = with_context(Seen(SCORES, fakes("a")), machine, batch_sizes=None)
    with pytest.raises(ProfilingError, match="does not fit into memory"):
        strategy.tune(net, "net", graph_spec, data, torch.device("cpu"), tmp_path)


def test_inputs_that_a_forward_changes_are_left_as_they_were_recorded(tmp_path):
    module = InputChanger()
    graph_spec, data = graph_of(module, (1, 2))
    before = data[0].args[0].clone()
    strategy = with_context(Seen(SCORES, []), batch_sizes=None)
    strategy.tune(module, "net", graph_spec, data, torch.device("cpu"), tmp_path)
    assert strategy.batch_size_search is not None
    assert torch.equal(data[0].args[0], before)


class TestOutsideARun:
    """It is public, so it may be called by hand with a graph that was recorded."""

    def search(self, tmp_path, strategy=None, module=None, batch_sizes=(1, 2), data=None):
        machine = SimulatedMachine()
        net = module or TimedNet(machine, 0.001, 0.00001)
        graph_spec, recorded = graph_of(net, batch_sizes)
        strategy = with_context(strategy or MinLatencyStrategy([]), machine)
        folder = tmp_path / "folder"
        found = strategy.find_max_batch_size(net, "net", graph_spec, recorded if data is None else data, CPU, folder)
        assert not folder.exists()
        assert graph_spec.get_max_batch_size() == found
        return found, strategy

    def test_it_widens_the_graph_and_leaves_no_folder(self, tmp_path):
        found, strategy = self.search(tmp_path)
        assert found > 2
        assert max(strategy.batch_size_search.measurements(), key=lambda m: m.throughput).batch_size == found

    def test_after_a_run_as_well(self, tmp_path):
        strategy = with_context(Seen(SCORES, fakes("a")))
        run(strategy, tmp_path / "run")
        assert self.search(tmp_path, strategy)[0] > 2

    def test_the_state_of_the_module_is_put_back(self, tmp_path):
        module = CallCounter().eval()
        graph_spec, data = record_graph(module, [call(torch.ones(size, 8)) for size in (1, 2)])
        before = module.calls.clone()
        MinLatencyStrategy([]).find_max_batch_size(module, "net", graph_spec, data, CPU, tmp_path)
        assert torch.equal(module.calls, before)

    def test_a_graph_without_a_batch_axis_is_an_error(self, tmp_path):
        with pytest.raises(AITuneUserInputError, match=r"net graph0 has no batch axis.*at least two batch sizes"):
            self.search(tmp_path, batch_sizes=(2,))

    def test_no_recorded_call_is_an_error(self, tmp_path):
        with pytest.raises(AITuneUserInputError, match="no recorded call"):
            self.search(tmp_path, data=[])


def test_the_class_that_the_search_runs_on_is_among_the_settings():
    class Own(ByTable):
        pass

    assert Own({}, []).to_json_dict()["find_max_batch_size_backend"] is None
    Own.set_find_max_batch_size_default_backend_class(FakeBackend)
    assert Own({}, []).to_json_dict()["find_max_batch_size_backend"] == "aitune.testing.fakes.FakeBackend"


@pytest.mark.parametrize("given", [FakeBackend(), int, "TorchEager"])
def test_something_that_is_no_backend_class(given):
    with pytest.raises(AITuneUserInputError, match="subclass of Backend"):
        Seen.set_find_max_batch_size_default_backend_class(given)
