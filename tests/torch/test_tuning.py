from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest
import torch
from tuning_models import HurryBackend, QuickStrategy, SleepyNet, cache_files, hurry, plain_answer, samples, wrapped

import aitune.torch as ait
from aitune.exceptions import AITuneUserInputError
from aitune.testing.fakes import CollectingListener, FakeBackend, add_offset, constant, swap_first_rows, to_float16
from aitune.torch.backend import ONNXRuntimeBackend
from aitune.torch.config import config
from aitune.torch.module.wrapper_module import ModuleState
from aitune.torch.report.tune_report import TuneReport


class TestWinner:
    def test_the_faster_right_backend_wins_and_serves(self) -> None:
        model = wrapped()
        report = ait.tune(model, samples(), batch_sizes=[1, 8], strategy=hurry())
        x = torch.randn(5, 4)
        expected = plain_answer(model.original, x)
        with torch.no_grad():
            got = model(x)
        assert report.module("net").status == "tuned"
        winner = report.winner("net")
        assert winner is not None
        assert winner.key == "Fake-hurry"
        assert model.state is ModuleState.TUNED
        assert torch.equal(got["y"], expected["y"])
        assert model.stats().served == {"graph0": 1}
        comparison = report.module("net").graphs[0].comparisons[-1]
        assert comparison.verdict == "faster"
        assert comparison.low > 1.0

    def test_the_report_is_whole_and_survives_json(self) -> None:
        report = ait.tune(wrapped(), samples(), batch_sizes=[1, 8], strategy=hurry())
        graph = report.module("net").graphs[0]
        assert [m.batch_size for m in graph.outcomes[0].measurements] == [1, 8]
        assert graph.outcomes[0].is_baseline
        assert "samples/s" in report.table()
        assert TuneReport.from_json(report.to_json()) == TuneReport.from_json(report.to_json())
        assert TuneReport.from_json(report.to_json()).winner("net") is not None

    def test_without_a_better_candidate_the_original_stays(self) -> None:
        model = wrapped()
        slow = QuickStrategy([FakeBackend("slow", alter=_slow_identity)])
        report = ait.tune(model, samples(), batch_sizes=[1, 8], strategy=slow)
        assert report.module("net").status == "original kept"
        winner = report.winner("net")
        assert winner is not None
        assert winner.is_baseline
        with torch.no_grad():
            assert torch.equal(model(torch.ones(3, 4))["y"], plain_answer(model.original, torch.ones(3, 4))["y"])

    @pytest.mark.parametrize(
        ("alter", "check"),
        [(add_offset, "value"), (swap_first_rows, "value"), (to_float16, "dtype"), (constant, "value")],
        ids=["offset", "swapped row", "float16", "constant"],
    )
    def test_a_wrong_candidate_never_wins_however_fast(
        self, alter: Callable[[torch.Tensor], torch.Tensor], check: str
    ) -> None:
        model = wrapped()
        strategy = QuickStrategy([HurryBackend("wrong", alter)])
        report = ait.tune(model, samples(), batch_sizes=[1, 8], strategy=strategy)
        outcome = report.module("net").graphs[0].outcomes[1]
        assert outcome.status == "rejected"
        assert outcome.agreement is not None
        assert outcome.agreement.rejection is not None
        rejection = outcome.agreement.rejection
        assert rejection.check == check
        assert rejection.output in ("y", "sum")
        for part in (rejection.output, rejection.got, rejection.expected, rejection.allowed):
            assert part in str(outcome.reason)
        assert (rejection.index is not None) == (check == "value")
        assert report.module("net").status == "original kept"


def _slow_identity(tensor: torch.Tensor) -> torch.Tensor:
    import time

    time.sleep(0.003)
    return tensor


class TestSeveralModules:
    def test_modules_tuned_one_after_the_other_both_stay_tuned(self) -> None:
        first, second = wrapped("first"), wrapped("second")
        ait.tune(first, samples(), batch_sizes=[1, 8], strategy=hurry())
        report = ait.tune(second, samples(), batch_sizes=[1, 8], strategy=hurry())
        assert (first.state, second.state) == (ModuleState.TUNED, ModuleState.TUNED)
        assert report.module("first").status == "already tuned"
        with torch.no_grad():
            first(torch.ones(2, 4))
            second(torch.ones(2, 4))
        assert first.stats().served == second.stats().served == {"graph0": 1}

    def test_two_modules_of_one_pipeline(self) -> None:
        inner = torch.nn.ModuleDict({"a": SleepyNet(), "b": SleepyNet()}).eval()

        def pipeline(x: torch.Tensor) -> torch.Tensor:
            return inner["b"](inner["a"](x)["y"])["sum"]

        expected = pipeline(torch.ones(3, 4))
        a, b = ait.Module(inner["a"], "a"), ait.Module(inner["b"], "b")
        report = ait.tune(pipeline, samples(), batch_sizes=[1, 8], strategy=hurry())
        with torch.no_grad():
            got = pipeline(torch.ones(3, 4))
        assert [module.status for module in report.modules] == ["tuned", "tuned"]
        assert torch.allclose(got, expected)
        assert a.stats().served == b.stats().served == {"graph0": 1}

    def test_retune_does_one_again_and_leaves_the_uncalled_as_it_is(self) -> None:
        first, second = wrapped("first"), wrapped("second")
        for model in (first, second):
            ait.tune(model, samples(), batch_sizes=[1, 8], strategy=hurry())
        before = second.module
        report = ait.tune(first, samples(), batch_sizes=[1, 4], strategy=hurry(), retune=True)
        assert report.module("first").status == "tuned"
        assert first.graph_specs[0].get_max_batch_size() == 4
        assert second.module is before
        assert second.state is ModuleState.TUNED

    def test_a_cell_that_wraps_and_tunes_runs_twice(self) -> None:
        net = SleepyNet().eval()
        for _ in range(2):
            model = ait.Module(net, "cell")
            report = ait.tune(model, samples(), batch_sizes=[1, 8], strategy=hurry())
        assert report.module("cell").status == "already tuned"
        assert any("retune=True" in warning for warning in report.warnings)
        assert model.state is ModuleState.TUNED

    def test_a_module_that_was_not_called_stays_as_it_was(self) -> None:
        called, other = wrapped("called"), wrapped("other")
        report = ait.tune(called, samples(), batch_sizes=[1, 8], strategy=hurry())
        assert report.module("other").status == "not called"
        assert other.state is ModuleState.INIT

    def test_kinds_of_calls_are_tuned_apart(self) -> None:
        model = wrapped()

        def both(x: torch.Tensor) -> None:
            model(x)
            model(x, scale=x)

        report = ait.tune(both, samples(), batch_sizes=[1, 8], strategy=hurry())
        assert [graph.graph for graph in report.module("net").graphs] == ["graph0", "graph1"]
        x = torch.randn(3, 4)
        with torch.no_grad():
            model(x), model(x, x), model(scale=x, x=x)
        assert model.stats().served == {"graph0": 1, "graph1": 2}


class TestOutsideTheRange:
    def test_the_original_answers_or_raises(self) -> None:
        net = SleepyNet().eval()
        model = ait.Module(net, "net")
        ait.tune(model, samples(), batch_sizes=[1, 8], strategy=hurry())
        with torch.no_grad():
            for x in (torch.ones(9, 4), torch.ones(4), torch.ones(2, 3, 4)):
                assert torch.equal(model(x)["y"], plain_answer(net, x)["y"])
            for args, kwargs in (
                ((torch.ones(2, 4, dtype=torch.float64),), {}),
                ((torch.ones(2, 5),), {}),
                ((torch.ones(2, 4),), {"unknown": 1}),
                ((), {}),
                (("text",), {}),
            ):
                with pytest.raises(Exception) as expected:  # noqa: PT011 - whatever the original raises
                    plain_answer(net, *args, **kwargs)
                with pytest.raises(type(expected.value)) as got:
                    model(*args, **kwargs)
                assert str(got.value) == str(expected.value)
        assert model.stats().served == {"graph0": 0}


class TestBadInput:
    @pytest.mark.parametrize(
        ("change", "part"),
        [
            ({"dataset": []}, "empty"),
            ({"batch_sizes": [0, 2]}, "0"),
            ({"batch_sizes": []}, "batch"),
            ({"batch_sizes": "18"}, "batch"),
            ({"batch_sizes": 8}, "batch"),
            ({"device": "no-such-device"}, "no-such-device"),
            ({"device": "cuda:99"}, "cuda:99"),
            ({"max_num_batches_per_batch_size": 0}, "0"),
            ({"func": "not callable"}, "callable"),
            ({"strategy": ait.MaxThroughputStrategy}, "MaxThroughputStrategy()"),
            ({"time_budget": 0}, "time_budget"),
            ({"time_budget": float("nan")}, "time_budget"),
            ({"dataset": 7}, "int"),
        ],
    )
    def test_is_an_error_that_says_what_to_do_and_changes_nothing(self, change: dict[str, Any], part: str) -> None:
        model = wrapped()
        arguments = {"func": model, "dataset": samples(), "batch_sizes": [1, 8], "strategy": hurry(), **change}
        with pytest.raises(AITuneUserInputError, match=part.replace("(", r"\(").replace(")", r"\)")):
            ait.tune(**arguments)
        assert model.state is ModuleState.INIT
        assert cache_files() == []

    def test_a_non_module_cannot_be_wrapped(self) -> None:
        with pytest.raises(AITuneUserInputError, match=r"torch\.nn\.Module"):
            ait.Module(lambda x: x)  # type: ignore[arg-type]

    def test_nothing_wrapped(self) -> None:
        with pytest.raises(AITuneUserInputError, match=r"ait\.Module"):
            ait.tune(SleepyNet(), samples())

    def test_a_dataset_that_raises(self) -> None:
        class Broken(torch.utils.data.Dataset[torch.Tensor]):
            def __len__(self) -> int:
                return 4

            def __getitem__(self, index: int) -> torch.Tensor:
                if index == 2:
                    raise OSError("disk on fire")
                return torch.ones(4)

        model = wrapped()
        with pytest.raises(AITuneUserInputError, match="disk on fire") as caught:
            ait.tune(model, Broken(), batch_sizes=[1, 8], strategy=hurry())
        assert caught.value.__cause__ is not None
        assert model.state is ModuleState.INIT
        assert cache_files() == []

    def test_a_function_that_raises_names_the_batch(self) -> None:
        model = wrapped()

        def func(x: torch.Tensor) -> None:
            model(x)
            raise ValueError("no")

        with pytest.raises(AITuneUserInputError, match=r"ValueError: no.*func\(Tensor\)"):
            ait.tune(func, samples(), batch_sizes=[1, 8], strategy=hurry())
        assert model.state is ModuleState.INIT

    def test_training_mode_is_warned_of_and_kept(self) -> None:
        model = ait.Module(SleepyNet().train(), "net")
        report = ait.tune(model, samples(), batch_sizes=[1, 8], strategy=hurry())
        assert any("training mode" in warning for warning in report.warnings)
        assert model.training
        assert model.linear.training
        with torch.no_grad():
            model(torch.ones(2, 4))
        assert model.stats().fallbacks == {"training mode": 1}
        with torch.no_grad():
            model.eval()(torch.ones(2, 4))
        assert model.stats().served == {"graph0": 1}

    def test_one_batch_size_is_warned_of(self) -> None:
        model = wrapped()
        report = ait.tune(model, samples(), batch_sizes=[2], strategy=hurry())
        assert any("batch size 2" in warning for warning in report.warnings)
        assert model.graph_specs[0].input_spec.tensor_specs[0].shape == (2, 4)


class TestSettings:
    def test_dry_run_builds_nothing(self) -> None:
        model = wrapped()
        report = ait.tune(model, samples(), batch_sizes=[1, 8], strategy=hurry(), dry_run=True)
        assert [o.status for o in report.module("net").graphs[0].outcomes] == ["skipped"]
        assert model.state is ModuleState.PASSTHROUGH or model.state is ModuleState.INIT
        assert cache_files() == []

    def test_an_exhausted_time_budget_skips_and_says_so(self) -> None:
        report = ait.tune(wrapped(), samples(), batch_sizes=[1, 8], strategy=hurry(), time_budget=1e-6)
        outcome = report.module("net").graphs[0].outcomes[-1]
        assert outcome.status == "skipped"
        assert "time budget" in str(outcome.reason)

    def test_clear_cache_empties_the_modules_folder_alone(self) -> None:
        model = wrapped()
        stale, other = model.cache_dir / "stale.bin", config.resolve_cache_dir() / "other" / "kept.bin"
        for path in (stale, other):
            path.parent.mkdir(parents=True)
            path.write_bytes(b"x")
        ait.tune(model, samples(), batch_sizes=[1, 8], strategy=hurry(), clear_cache=True)
        assert not stale.exists()
        assert other.exists()

    def test_events_come_in_order_and_a_broken_listener_does_not_stop_the_run(self) -> None:
        class Broken:
            def on_event(self, event: Any) -> None:
                raise RuntimeError("deaf")

        listener = CollectingListener()
        ait.tune(wrapped(), samples(), batch_sizes=[1, 8], strategy=hurry(), listeners=[Broken(), listener])
        kinds = [type(event).__name__ for event in listener.events]
        assert kinds[0] == "RunStarted"
        assert kinds[-1] == "RunFinished"
        assert kinds.index("GraphStarted") < kinds.index("CandidateFinished") < kinds.index("GraphFinished")

    def test_logging_and_threads_of_the_host_are_left_alone(self) -> None:
        root = logging.getLogger()
        before = (list(root.handlers), root.level, logging.getLogger("torch").level, torch.get_num_threads())
        with config.override(num_threads=2):
            ait.tune(wrapped(), samples(), batch_sizes=[1, 8], strategy=hurry(), disable_external_logging=True)
        assert before == (list(root.handlers), root.level, logging.getLogger("torch").level, torch.get_num_threads())

    def test_nothing_is_left_on_disk_for_a_backend_without_files(self) -> None:
        model = wrapped()
        ait.tune(model, samples(), batch_sizes=[1, 8], strategy=hurry())
        assert cache_files() == []


@pytest.fixture(autouse=True)
def _quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR)


class TestPartsThatChangeAfterTuning:
    """Each runs on the original from then on, and is answered as the original would."""

    @staticmethod
    def parts() -> Any:
        return torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Dropout(0.5), torch.nn.BatchNorm1d(4)).eval()

    @staticmethod
    def tuned(module: torch.nn.Module) -> Any:
        model = ait.Module(module, "parts")
        strategy = QuickStrategy([ONNXRuntimeBackend()]).enable_performance_validation(False)
        report = ait.tune(model, samples(), batch_sizes=[2, 4], strategy=strategy)
        return model, report

    def test_the_mode_of_a_part(self) -> None:
        net = self.parts()
        model, _ = self.tuned(net)
        x = torch.randn(3, 4)
        with torch.no_grad():
            model(x)
            net[1].train()
            torch.manual_seed(0)
            dropped = model(x)
            torch.manual_seed(0)
            assert torch.equal(dropped, plain_answer(net, x))
            net[1].eval()
            model(x)
        assert model.stats().served == {"graph0": 2}
        assert model.stats().fallbacks == {"weights changed": 1}

    def test_the_mode_of_a_part_before_tuning(self) -> None:
        net = self.parts()
        net[1].train()
        model, report = self.tuned(net)
        assert any("'1' is in training mode" in warning for warning in report.warnings)
        with torch.no_grad():
            model(torch.randn(3, 4))
            assert model.stats().served == {"graph0": 0}
            model.eval()(torch.randn(3, 4))
        assert model.stats().served == {"graph0": 1}

    def test_a_hook_that_is_removed(self) -> None:
        net = self.parts()
        handle = net[0].register_forward_hook(lambda module, args, output: output * 5)
        model, _ = self.tuned(net)
        handle.remove()
        x = torch.randn(3, 4)
        with torch.no_grad():
            assert torch.equal(model(x), plain_answer(net, x))
        assert model.stats().served == {"graph0": 0}


def test_a_branch_on_two_equal_sizes_is_refused() -> None:
    class Square(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.flip(0) if x.shape[0] == x.shape[1] else x * 3

    model = ait.Module(Square().eval(), "square")
    strategy = QuickStrategy([ONNXRuntimeBackend()])
    lengths = (4, 30, 10, 20, 4, 30)
    report = ait.tune(
        model, lambda size: [torch.randn(size, n) for n in lengths], batch_sizes=[1, 5], strategy=strategy
    )
    assert report.module("square").graphs[0].outcomes[1].status in ("rejected", "failed")


def test_a_tensor_as_a_default_argument() -> None:
    class Scaled(torch.nn.Module):
        def forward(self, x: torch.Tensor, scale: torch.Tensor = torch.ones(4)) -> torch.Tensor:  # noqa: B008
            return x * scale

    with torch.no_grad():
        assert torch.equal(ait.Module(Scaled().eval(), "scaled")(torch.ones(2, 4)), torch.ones(2, 4))
