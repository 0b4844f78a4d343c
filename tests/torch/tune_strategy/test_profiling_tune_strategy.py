import json
import math

import pytest
import torch
from strategy_parts import CPU, ORIGINAL, ByTable, Scored, fakes, graph_of, outcome_of, run, with_context

from aitune.events import CandidateFinished, Emitter, GraphFinished, GraphStarted, Warned
from aitune.exceptions import AITuneUserInputError, ProfilingError, TuningError
from aitune.testing.fakes import CollectingListener, FakeBackend, add_offset
from aitune.torch.tune_strategy.performance_validation import PerformanceValidationMode
from aitune.torch.tune_strategy.profiling_tune_strategy import BASELINE_KEY, BackendPerfResult, _TuneCandidate

MODES = ["enabled", "diagnostic", "disabled"]


def by_table(scores, backends=None, mode="enabled", **settings):
    backends = fakes(*(label for label in scores if label != ORIGINAL)) if backends is None else backends
    table = {label if label == ORIGINAL else f"Fake({label})": score for label, score in scores.items()}
    return with_context(ByTable(table, backends), **settings).enable_performance_validation(mode)


def winner(strategy, folder, **settings):
    return run(strategy, folder, **settings).describe()


# -- who wins --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("scores", "enabled", "otherwise"),
    [
        ({ORIGINAL: 10, "a": 20, "b": 30}, "Fake(b)", "Fake(b)"),
        ({ORIGINAL: 10, "a": 30, "b": 20}, "Fake(a)", "Fake(a)"),
        # Within the noise of 5% the original module stays, then the first in the list.
        ({ORIGINAL: 10, "a": 10.4}, ORIGINAL, "Fake(a)"),
        ({ORIGINAL: 10, "a": 20, "b": 20.9}, "Fake(a)", "Fake(a)"),
        ({ORIGINAL: 10, "b": 20.9, "a": 20}, "Fake(b)", "Fake(b)"),
        ({ORIGINAL: 10, "a": 2, "b": 4}, ORIGINAL, "Fake(b)"),
        # c beats a and ties with b, b ties with a: b is the first that nobody beats.
        ({ORIGINAL: 10, "a": 20, "b": 20.9, "c": 21.5}, "Fake(b)", "Fake(b)"),
        ({ORIGINAL: 10, "a": 20, "b": 5, "c": 30, "d": 25}, "Fake(c)", "Fake(c)"),
        # All three tie with each other, and only the last one is better than the original.
        ({ORIGINAL: 10, "a": 10.2, "b": 10.2, "c": 10.6}, "Fake(c)", "Fake(a)"),
    ],
)
def test_the_best_wins_and_ties_go_to_the_simpler(tmp_path, scores, enabled, otherwise):
    found = {mode: winner(by_table(scores, mode=mode), tmp_path) for mode in MODES}
    assert found == {"enabled": enabled, "diagnostic": otherwise, "disabled": otherwise}


@pytest.mark.parametrize(
    "bad",
    [
        RuntimeError("out of luck"),
        math.nan,
        math.inf,
        0.0,
        -3.0,
        None,
        "fast",
        lambda backend: backend.deactivate() or 50.0,
    ],
    ids=["raises", "nan", "infinite", "zero", "negative", "none", "text", "deactivates itself"],
)
@pytest.mark.parametrize("mode", MODES)
def test_a_candidate_that_cannot_be_measured_is_out_and_the_rest_goes_on(tmp_path, bad, mode):
    strategy = by_table({ORIGINAL: 10, "bad": bad, "good": 20}, mode=mode)
    assert winner(strategy, tmp_path) == "Fake(good)"
    outcome = outcome_of(strategy, "bad")
    assert (outcome.status, outcome.stage) == ("failed", "measure")
    assert outcome.reason
    assert outcome.error_type
    assert outcome_of(strategy, "good").status == "ok"


@pytest.mark.parametrize(
    ("backend", "status", "stage", "part"),
    [
        (FakeBackend("bad", fails_at="can_run"), "unavailable", "availability", "cannot run on purpose"),
        (FakeBackend("bad", fails_at="build"), "failed", "build", "fails at build on purpose"),
        (FakeBackend("bad", fails_at="activate"), "failed", "build", "fails at activate on purpose"),
        (FakeBackend("bad", fails_at="infer"), "failed", "check", "fails at infer on purpose"),
        (FakeBackend("bad", alter=add_offset), "rejected", "check", "value differs at output"),
    ],
    ids=["unavailable", "build", "activate", "infer", "wrong"],
)
@pytest.mark.parametrize("mode", MODES)
def test_a_candidate_that_ends_before_it_is_measured(tmp_path, backend, status, stage, part, mode):
    strategy = by_table({ORIGINAL: 10, "good": 20}, [backend, FakeBackend("good")], mode)
    assert winner(strategy, tmp_path) == "Fake(good)"
    outcome = outcome_of(strategy, "bad")
    assert (outcome.status, outcome.stage) == (status, stage)
    assert part in outcome.reason


def test_when_all_fail_the_original_stays_with_validation_on(tmp_path):
    strategy = by_table({ORIGINAL: 10}, [FakeBackend("a", fails_at="build"), FakeBackend("b", alter=add_offset)])
    assert winner(strategy, tmp_path) == ORIGINAL
    assert strategy.report.winner == BASELINE_KEY
    assert strategy.report.reason == "no candidate came through"


@pytest.mark.parametrize("mode", ["diagnostic", "disabled"])
def test_when_all_fail_with_validation_off_the_error_lists_every_reason(tmp_path, mode):
    backends = [FakeBackend("a", fails_at="build"), FakeBackend("b", alter=add_offset), FakeBackend("c")]
    strategy = by_table({ORIGINAL: 10, "c": math.nan}, backends, mode)
    with pytest.raises(TuningError) as caught:
        run(strategy, tmp_path)
    for part in (
        "Fake(a): failed",
        "a fails at build",
        "Fake(b): rejected",
        "allowed",
        "Fake(c): failed",
        "score is nan",
    ):
        assert part in str(caught.value)


def test_an_empty_list_is_obeyed(tmp_path):
    strategy = by_table({ORIGINAL: 10}, [])
    assert winner(strategy, tmp_path) == ORIGINAL
    assert strategy.report.reason == "the list of candidates is empty"
    assert [outcome.key for outcome in strategy.backend_results] == [BASELINE_KEY]


@pytest.mark.parametrize("mode", ["diagnostic", "disabled"])
def test_an_empty_list_with_validation_off_is_an_error_that_says_what_to_do(tmp_path, mode):
    with pytest.raises(TuningError, match=r"is empty.*give backends, or enable_performance_validation"):
        run(by_table({ORIGINAL: 10}, [], mode), tmp_path)


# -- the baseline ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["enabled", "diagnostic"])
@pytest.mark.parametrize(
    ("bad", "part"),
    [(RuntimeError("no licence"), "no licence"), (math.nan, "nan"), (0, "0"), (-1.0, "-1"), (None, "None")],
)
def test_a_baseline_that_cannot_be_measured_is_raised(tmp_path, bad, part, mode):
    with pytest.raises(ProfilingError, match=part):
        run(by_table({ORIGINAL: bad, "a": 20}, mode=mode), tmp_path)


def test_a_model_that_does_not_run_is_raised_not_skipped(tmp_path):
    class Broken(torch.nn.Module):
        runs = True

        def forward(self, x):
            if not self.runs:
                raise RuntimeError("no licence")
            return x

    module = Broken().eval()
    graph_spec, data = graph_of(module)
    module.runs = False
    with pytest.raises(AITuneUserInputError, match="no licence"):
        by_table({ORIGINAL: 10, "a": 20}).tune(module, "net", graph_spec, data, CPU, tmp_path)


def test_with_validation_disabled_the_baseline_is_not_measured(tmp_path):
    strategy = by_table({ORIGINAL: RuntimeError("never asked"), "a": 20}, mode="disabled")
    assert winner(strategy, tmp_path) == "Fake(a)"
    assert strategy._baseline_backend is None
    assert strategy._baseline_result is None
    assert strategy.perf_validation_results == []


@pytest.mark.parametrize("mode", ["enabled", "diagnostic"])
def test_the_baseline_is_measured_and_reported(tmp_path, mode):
    strategy = by_table({ORIGINAL: 10, "a": 8, "b": 40}, mode=mode)
    run(strategy, tmp_path)
    assert strategy._baseline_result == Scored(1, 10)
    assert strategy.perf_validation_results == [
        BackendPerfResult("Fake(a)", 8, 10, 0.8, False),
        BackendPerfResult("Fake(b)", 40, 10, 4.0, True),
    ]
    assert strategy.report.outcomes[0].is_baseline
    assert strategy.strategy_results == {
        BASELINE_KEY: {"selected_batch_size": 1, "score": 10},
        "Fake-a": {"selected_batch_size": 1, "score": 8},
        "Fake-b": {"selected_batch_size": 1, "score": 40},
    }


def test_diagnostic_validation_does_not_choose(tmp_path):
    strategy = by_table({ORIGINAL: 100, "a": 8, "b": 40}, mode="diagnostic")
    assert winner(strategy, tmp_path) == "Fake(b)"
    assert [result.passed for result in strategy.perf_validation_results] == [False, False]
    assert "100.00 points" not in strategy.report.reason


# -- words -----------------------------------------------------------------------------------------------------------


def test_reasons_are_one_short_sentence(tmp_path):
    won, kept = by_table({ORIGINAL: 10, "a": 20}), by_table({ORIGINAL: 10, "a": 9})
    run(won, tmp_path), run(kept, tmp_path)
    assert won.report.reason == "its score of 20.00 points is better than the original module's 10.00 points"
    assert kept.report.reason == "its score of 10.00 points is not beaten: the best candidate, Fake(a), has 9.00 points"


def test_what_happens_is_said_in_order(tmp_path):
    listener = CollectingListener()
    strategy = by_table({ORIGINAL: 10, "a": 20, "b": math.nan}, emitter=Emitter([listener]))
    run(strategy, tmp_path)
    assert [e.outcome.key for e in listener.of(CandidateFinished)] == [BASELINE_KEY, "Fake-a", "Fake-b"]
    assert listener.of(GraphStarted)[0].candidates == ("Fake(a)", "Fake(b)")
    assert listener.of(GraphFinished)[0].report is strategy.report
    assert listener.events[0] == listener.of(GraphStarted)[0]
    assert listener.events[-1] == listener.of(GraphFinished)[0]


def test_a_check_that_is_off_is_warned_of_and_lets_everything_through(tmp_path):
    listener = CollectingListener()
    strategy = by_table(
        {ORIGINAL: 10, "wrong": 20}, [FakeBackend("wrong", alter=add_offset)], emitter=Emitter([listener])
    )
    strategy.enable_correctness_check(False)
    assert winner(strategy, tmp_path) == "Fake(wrong)"
    assert "correctness check is off" in strategy.report.warnings[0]
    assert listener.of(Warned)[0].message == strategy.report.warnings[0]


# -- hooks -----------------------------------------------------------------------------------------------------------

HOOKS = [
    "_configure_for_module",
    "_pre_tune",
    "_get_profiling_config",
    "_measure",
    "_tune",
    "_run_backends",
    "_record_perf_result",
    "_is_better",
    "_speedup",
    "_resolve_winner",
    "_log_baseline_selected",
    "_fmt",
    "_post_tune",
    "_default_backends",
    "_default_aot_backends",
    "_resolve_default_backends",
    "_describe_parts",
]


def recording(hooks):
    """A strategy that writes down which of its hooks was entered, and then does what it would."""
    calls = []

    def wrapped(name):
        def method(self, *args, **kwargs):
            calls.append(name)
            return getattr(super(Recording, self), name)(*args, **kwargs)

        return method

    class WithDefaults(ByTable):
        def _default_aot_backends(self, distributed=False):
            return fakes("a", "b")

    class Recording(WithDefaults):
        pass

    for name in hooks:
        setattr(Recording, name, wrapped(name))
    return Recording, calls


def test_hooks_are_called_in_order(tmp_path):
    order = ["_configure_for_module", "_pre_tune", "_get_profiling_config", "_measure", "_tune", "_run_backends"]
    order += ["_record_perf_result", "_resolve_winner", "_log_baseline_selected", "_post_tune"]
    strategy_class, calls = recording(order)
    strategy = with_context(strategy_class({ORIGINAL: 10, "Fake(a)": 5, "Fake(b)": 6}, fakes("a", "b")))
    run(strategy, tmp_path)
    assert calls == [
        "_configure_for_module",
        "_pre_tune",
        "_get_profiling_config",
        "_measure",
        "_tune",
        "_run_backends",
        "_get_profiling_config",
        "_measure",
        "_record_perf_result",
        "_measure",
        "_record_perf_result",
        "_resolve_winner",
        "_log_baseline_selected",
        "_post_tune",
    ]


@pytest.mark.parametrize("hook", HOOKS)
def test_a_subclass_that_overrides_one_hook_is_called_and_works(tmp_path, hook):
    strategy_class, calls = recording([hook])
    strategy = with_context(strategy_class({ORIGINAL: 10, "Fake(a)": 5, "Fake(b)": 6}))
    assert run(strategy, tmp_path).describe() == ORIGINAL
    assert strategy.describe()
    assert hook in calls


class TestOverriddenHooks:
    def test_default_backends_is_obeyed(self, tmp_path):
        class Mine(ByTable):
            def _default_backends(self):
                return fakes("mine")

        strategy = with_context(Mine({ORIGINAL: 10, "Fake(mine)": 20}))
        assert run(strategy, tmp_path).describe() == "Fake(mine)"
        assert strategy._resolved_backends is strategy._backends

    def test_a_workflow_list_is_obeyed(self, tmp_path):
        class Mine(ByTable):
            def _default_aot_backends(self, distributed=False):
                return fakes("ahead")

            def _default_jit_backends(self, distributed=False):
                return fakes("just")

        for workflow, label in (("aot", "Fake(ahead)"), ("jit", "Fake(just)")):
            strategy = with_context(Mine({ORIGINAL: 10, label: 20}, workflow=workflow))
            assert run(strategy, tmp_path).describe() == label

    def test_is_better_alone_decides(self, tmp_path):
        class LessIsMore(ByTable):
            def _is_better(self, result, other):
                return result.metric < other.metric

        strategy = with_context(LessIsMore({ORIGINAL: 10, "Fake(a)": 20, "Fake(b)": 5}, fakes("a", "b")))
        assert run(strategy, tmp_path).describe() == "Fake(b)"

    def test_run_backends_may_choose(self, tmp_path):
        class First(ByTable):
            def _run_backends(self, module, name, graph_spec, data, *rest):
                backend = FakeBackend("own").build(module, graph_spec, data, CPU, tmp_path)
                backend.activate()
                return _TuneCandidate(backend, Scored(1, 99))

        assert run(with_context(First({ORIGINAL: 10}, [])), tmp_path).describe() == "Fake(own)"

    def test_resolve_winner_may_choose(self, tmp_path):
        class Loyal(ByTable):
            def _resolve_winner(self, best):
                return _TuneCandidate(self._baseline_backend, self._baseline_result)

        strategy = with_context(Loyal({ORIGINAL: 10, "Fake(a)": 20}, fakes("a")))
        assert run(strategy, tmp_path).describe() == ORIGINAL
        assert strategy.report.winner == BASELINE_KEY

    def test_tune_may_choose(self, tmp_path):
        class Own(ByTable):
            def _tune(self, module, name, graph_spec, data, device, cache_dir):
                return FakeBackend("own").build(module, graph_spec, data, device, cache_dir)

        backend = run(with_context(Own({ORIGINAL: 10}, [])), tmp_path)
        assert backend.describe() == "Fake(own)"
        assert backend.is_active

    def test_fmt_and_describe_parts_are_used(self, tmp_path):
        class Worded(ByTable):
            _title = "By score"

            def _fmt(self, value):
                return f"<{value}>"

            def _describe_parts(self):
                return [*super()._describe_parts(), "worded"]

        strategy = with_context(Worded({ORIGINAL: 10, "Fake(a)": 20}, fakes("a")))
        run(strategy, tmp_path)
        assert strategy.report.reason == "its score of <20.0> is better than the original module's <10.0>"
        assert strategy.describe().splitlines() == [
            "By score", "candidates: Fake(a)", "performance validation: enabled", "worded"
        ]  # fmt: skip

    def test_a_hook_that_raises_after_the_measurement_costs_only_its_candidate(self, tmp_path):
        class Picky(ByTable):
            def _speedup(self, result, baseline_result):
                if result.metric == 30:
                    raise ZeroDivisionError("cannot be told")
                return 1.0

        strategy = with_context(Picky({ORIGINAL: 10, "Fake(a)": 30, "Fake(b)": 20}, fakes("a", "b")))
        assert run(strategy, tmp_path).describe() == "Fake(b)"
        assert "cannot be told" in outcome_of(strategy, "a").reason

    def test_the_metric_is_formatted_with_its_unit(self):
        assert ByTable({})._fmt(12.345) == "12.35 points"


# -- settings and state ----------------------------------------------------------------------------------------------


def test_every_run_forgets_the_one_before_and_leaves_its_results(tmp_path):
    strategy = by_table({ORIGINAL: 10, "a": 20, "b": math.nan})
    run(strategy, tmp_path)
    first = (strategy.report, strategy.backend_results, strategy.perf_validation_results)
    strategy.table["Fake(a)"] = 5
    run(strategy, tmp_path)
    assert len(strategy.backend_results) == len(first[1]) == 3
    assert len(strategy.perf_validation_results) == 1
    assert strategy.perf_validation_results[0].metric == 5
    assert first[2][0].metric == 20
    assert (first[0].winner, strategy.report.winner) == ("Fake-a", BASELINE_KEY)
    assert strategy.report.warnings == first[0].warnings


def test_a_run_that_fails_leaves_no_trace_in_the_next(tmp_path):
    strategy = by_table({ORIGINAL: RuntimeError("no"), "a": 20})
    with pytest.raises(ProfilingError):
        run(strategy, tmp_path)
    strategy.table[ORIGINAL] = 10
    assert winner(strategy, tmp_path) == "Fake(a)"
    assert [outcome.status for outcome in strategy.backend_results] == ["ok", "ok"]


def test_candidates_of_the_user_are_never_built_themselves(tmp_path):
    backends = fakes("a", "b")
    strategy = by_table({ORIGINAL: 10, "a": 20, "b": 30}, backends)
    chosen = run(strategy, tmp_path)
    assert all(not backend.is_active for backend in backends)
    assert chosen is not backends[1]
    assert run(strategy, tmp_path) is not chosen


def test_those_that_lose_are_freed(tmp_path):
    freed = []

    class Freed(FakeBackend):
        def _deactivate(self):
            freed.append(self.describe())

    strategy = by_table({ORIGINAL: 10, "a": 5, "b": 20, "c": 30, "d": 2}, [Freed(label) for label in "abcd"])
    assert run(strategy, tmp_path).is_active
    assert sorted(freed) == ["Fake(a)", "Fake(b)", "Fake(d)"]


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit()])
def test_an_interrupt_passes_and_frees_what_was_active(tmp_path, error):
    freed = []

    class Freed(FakeBackend):
        def _deactivate(self):
            freed.append(self.describe())

    strategy = by_table({ORIGINAL: 10, "a": 20, "b": error}, [Freed("a"), Freed("b")])
    with pytest.raises(type(error)):
        run(strategy, tmp_path)
    assert sorted(freed) == ["Fake(a)", "Fake(b)"]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("given", "mode", "decides"),
    [
        (True, "enabled", True),
        (False, "disabled", False),
        ("enabled", "enabled", True),
        ("diagnostic", "diagnostic", False),
        ("disabled", "disabled", False),
        (PerformanceValidationMode.DIAGNOSTIC, "diagnostic", False),
    ],
)
def test_validation_modes_and_that_calls_chain(given, mode, decides):
    strategy = ByTable({}, [])
    assert strategy.enable_performance_validation(given) is strategy
    assert strategy._performance_validation_enabled is decides
    assert strategy.to_json_dict()["performance_validation"] == mode


@pytest.mark.parametrize("given", ["on", None, 1, "Enabled"])
def test_an_unknown_mode_is_an_error(given):
    with pytest.raises(AITuneUserInputError, match="'enabled', 'diagnostic', 'disabled'"):
        ByTable({}, []).enable_performance_validation(given)


def test_a_profiling_config_of_another_kind_is_an_error():
    with pytest.raises(AITuneUserInputError, match="ProfilingConfig"):
        ByTable({}, [], profiling_config={"batch_sizes": [1]})


def test_its_settings_are_plain_data(tmp_path):
    strategy = by_table({ORIGINAL: 10, "a": 20})
    run(strategy, tmp_path)
    settings = json.loads(json.dumps(strategy.to_json_dict()))
    assert settings == strategy.report.strategy
    assert settings["metric"] == "score"


def test_no_data_is_an_error(tmp_path):
    module = torch.nn.Linear(4, 3).eval()
    graph_spec, _ = graph_of(module)
    with pytest.raises(AITuneUserInputError, match="no recorded call"):
        by_table({ORIGINAL: 10}, []).tune(module, "net", graph_spec, [], CPU, tmp_path)


def test_a_correctness_check_outside_a_run_is_an_error():
    module = torch.nn.Linear(4, 3).eval()
    graph_spec, data = graph_of(module)
    with pytest.raises(AITuneUserInputError, match="while tune is running"):
        ByTable({}, []).check_correctness(FakeBackend(), "net", graph_spec, data)


def test_a_dry_run_says_what_would_be_tried(tmp_path):
    module = torch.nn.Linear(4, 3).eval()
    graph_spec, data = graph_of(module)
    strategy = by_table({}, [FakeBackend("a", fails_at="can_run"), FakeBackend("b", fails_at="build")])
    outcomes = strategy.tune_dry_run(module, "net", graph_spec, data, CPU, tmp_path / "folder")
    assert [(o.status, o.reason) for o in outcomes] == [
        ("unavailable", "a cannot run on purpose"),
        ("skipped", "dry run"),
    ]
    assert not (tmp_path / "folder").exists()
    assert strategy.report.winner is None


def test_a_clone_has_the_settings_and_not_the_results(tmp_path):
    strategy = by_table({ORIGINAL: 10, "a": 20}, mode="diagnostic")
    run(strategy, tmp_path)
    clone = strategy.clone().enable_performance_validation(True)
    assert clone.report is None
    assert clone.backend_results == []
    assert clone._backends == strategy._backends
    assert not strategy._performance_validation_enabled
    assert strategy.report is not None
