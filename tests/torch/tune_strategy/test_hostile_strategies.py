"""Strategies whose authors slipped: nothing wrong is served, no finished run is lost, the message names the hook."""

import json
import logging
import math
from contextlib import suppress

import numpy as np
import pytest
import torch
from strategy_parts import ORIGINAL, ByTable, Scored, TimedBackend, TimedNet, fakes, outcome_of, run, with_context

from aitune.exceptions import AITuneError, AITuneUserInputError, CorrectnessError, ProfilingError
from aitune.testing.fakes import FakeBackend, add_offset
from aitune.testing.simulated_machine import SimulatedMachine
from aitune.torch.tune_strategy.max_throughput_strategy import MaxThroughputStrategy
from aitune.torch.tune_strategy.profiling_tune_strategy import BASELINE_KEY, _TuneCandidate

SCORES = {ORIGINAL: 10, "Fake(a)": 20, "Fake(b)": 30}


def overriding(base=ByTable, **hooks):
    """Return a strategy class called Mine whose hooks return given values, or do what a given function does."""

    def returning(value):
        return lambda self, *args, **kwargs: value

    bodies = {hook: body if callable(body) and not isinstance(body, type) else returning(body)
              for hook, body in hooks.items()}  # fmt: skip
    return type("Mine", (base,), bodies)


def mine(backends=None, scores=SCORES, **hooks):
    return with_context(overriding(**hooks)(scores, fakes("a", "b") if backends is None else backends))


def built(self, backend, activate=True):
    """Build a backend past the engine, as an author may."""
    job = self._job
    made = backend.build(job.module, job.graph_spec, job.data, job.device, "unused")
    if activate:
        made.activate()
    return made


# -- what was not compared -------------------------------------------------------------------------------------------


def from_tune(backend):
    return {"_tune": lambda self, *args: built(self, backend)}


def from_run_backends(backend):
    return {"_run_backends": lambda self, *args: _TuneCandidate(built(self, backend), Scored(1, 99))}


def from_resolve_winner(backend):
    return {"_resolve_winner": lambda self, best: _TuneCandidate(built(self, backend), Scored(1, 99))}


def as_the_baseline(backend):
    def pre_tune(self, *args):
        self._baseline_backend, self._baseline_result = built(self, backend), Scored(1, 1e6)

    return {"_pre_tune": pre_tune}


def tried_before_anything_was_prepared(backend):
    def pre_tune(self, *args):
        self.early = self._evaluate(backend, self._job).backend

    return {"_pre_tune": pre_tune, "_tune": lambda self, *args: self.early}


WAYS = [from_tune, from_run_backends, from_resolve_winner, as_the_baseline, tried_before_anything_was_prepared]


@pytest.mark.parametrize("way", WAYS)
def test_a_choice_that_was_not_compared_is_compared_and_refused(tmp_path, way):
    strategy = mine(**way(FakeBackend("own", add_offset)))
    with pytest.raises(CorrectnessError, match=r"Mine\._tune returned Fake\(own\), which was not tried.*allowed"):
        run(strategy, tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("way", WAYS)
def test_a_choice_that_was_not_compared_and_agrees_is_served_and_stands_in_the_report(tmp_path, way):
    strategy = mine(**way(FakeBackend("own")))
    assert run(strategy, tmp_path).describe() == "Fake(own)"
    winner = next(outcome for outcome in strategy.report.outcomes if outcome.key == strategy.report.winner)
    assert winner.status == "ok"
    assert winner.agreement.passed
    assert winner.agreement.calls
    assert strategy.report.reason


@pytest.mark.parametrize("way", WAYS)
def test_without_the_check_it_is_served_as_the_user_wanted(tmp_path, way):
    strategy = mine(**way(FakeBackend("own", add_offset))).enable_correctness_check(False)
    assert run(strategy, tmp_path).describe() == "Fake(own)"
    assert strategy.report.winner in {outcome.key for outcome in strategy.report.outcomes}
    assert any("correctness check is off" in warning for warning in strategy.report.warnings)


@pytest.mark.parametrize("fault", [{"alter": add_offset}, {"fails_at": "infer"}], ids=["wrong", "raises"])
def test_a_choice_that_is_refused_is_let_go_of(tmp_path, fault):
    made = []

    def tune(self, *args):
        made.append(built(self, FakeBackend("own", **fault)))
        return made[0]

    with pytest.raises(CorrectnessError):
        run(mine(_tune=tune), tmp_path)
    assert not made[0].is_active


def test_a_candidate_that_was_rejected_cannot_be_built_again_and_served(tmp_path):
    wrong = FakeBackend("wrong", add_offset)

    def resolve(self, best):
        return _TuneCandidate(built(self, wrong.fresh()), Scored(1, 99))

    with pytest.raises(CorrectnessError):
        run(mine([wrong], _resolve_winner=resolve), tmp_path)


def test_one_that_cannot_be_compared_is_refused(tmp_path):
    strategy = mine(**from_tune(FakeBackend("own", fails_at="infer")))
    with pytest.raises(CorrectnessError, match="own fails at infer on purpose"):
        run(strategy, tmp_path)
    assert outcome_of(strategy, "own").status == "failed"


def test_one_that_is_built_and_not_active_is_activated(tmp_path):
    backend = FakeBackend("own")
    strategy = mine(_tune=lambda self, *args: built(self, backend, activate=False))
    assert run(strategy, tmp_path).is_active


def test_candidates_that_came_through_are_not_compared_twice(tmp_path):
    compared = []

    class Counting(FakeBackend):
        def _infer(self, *args, **kwargs):
            compared.append(self.label)
            return super()._infer(*args, **kwargs)

    run(mine([Counting("a")]), tmp_path)
    once = len(compared)
    run(mine([Counting("a")], _tune=ByTable._tune), tmp_path)
    assert len(compared) == 2 * once


def test_a_released_candidate_may_still_be_chosen(tmp_path):
    def keep(self, *args):
        best = ByTable._run_backends(self, *args)
        self._release(best.backend.key())
        return best

    backend = run(mine(_run_backends=keep), tmp_path)
    assert backend.describe() == "Fake(b)"
    assert backend.is_active


@pytest.mark.parametrize("validation", [True, False])
def test_running_no_candidate_is_not_called_an_empty_list(tmp_path, validation):
    strategy = mine(_run_backends=None).enable_performance_validation(validation)
    with suppress(AITuneError):
        run(strategy, tmp_path)
    said = "_run_backends returned none, and tried none of the candidates: Fake(a), Fake(b)"
    assert said in strategy.report.reason


def test_returning_none_of_those_that_came_through_is_said(tmp_path):
    def forget(self, *args):
        ByTable._run_backends(self, *args)

    strategy = mine(_run_backends=forget)
    assert run(strategy, tmp_path).describe() == ORIGINAL
    assert strategy.report.reason.startswith("none is better of the candidates that came through: Fake(a), Fake(b)")


# -- hooks that return the wrong thing -------------------------------------------------------------------------------

WRONG = [
    ("_tune", None),
    ("_tune", FakeBackend),
    ("_tune", "Fake(a)"),
    ("_tune", FakeBackend("never built")),
    ("_tune", _TuneCandidate(FakeBackend("a"), Scored(1, 2))),
    ("_resolve_winner", None),
    ("_resolve_winner", FakeBackend("a")),
    ("_resolve_winner", _TuneCandidate(None, None)),
    ("_run_backends", "Fake(a)"),
    ("_run_backends", FakeBackend("a")),
    ("_run_backends", _TuneCandidate("Fake(a)", Scored(1, 2))),
    ("_get_profiling_config", None),
    ("_get_profiling_config", {"batch_sizes": [1]}),
]


@pytest.mark.parametrize(("hook", "value"), WRONG, ids=lambda value: str(value)[:40])
def test_a_hook_that_returns_the_wrong_thing_is_named(tmp_path, hook, value):
    with pytest.raises(AITuneUserInputError) as caught:
        run(mine(**{hook: value}), tmp_path)
    assert f"Mine.{hook}" in str(caught.value)
    assert any(part in str(caught.value) for part in ("expected", "not built", "is new"))


NO_LISTS = ["ONNXRuntime", 7, FakeBackend("a"), [FakeBackend], ["ONNXRuntime"], fakes("a", "a"), {"a": None}]
LIST_HOOKS = ["_default_backends", "_default_aot_backends", "_default_jit_backends", "_resolve_default_backends"]


@pytest.mark.parametrize(
    ("hook", "value"),
    [*((hook, None) for hook in LIST_HOOKS), *(("_default_backends", value) for value in NO_LISTS)],
    ids=lambda value: str(value)[:40],
)
def test_a_list_of_candidates_that_is_none(tmp_path, hook, value):
    workflow = "jit" if "jit" in hook else "aot"
    strategy = with_context(overriding(**{hook: lambda self, *args: value})(SCORES, workflow=workflow))
    with pytest.raises(AITuneUserInputError, match=rf"what Mine\.{hook} returned"):
        run(strategy, tmp_path)


def test_a_backends_property_that_is_no_list(tmp_path):
    strategy = with_context(type("Mine", (ByTable,), {"_backends": property(lambda self: None)})(SCORES))
    with pytest.raises(
        AITuneUserInputError, match=r"what Mine\._backends returned must be a list of backends, got None"
    ):
        run(strategy, tmp_path)


@pytest.mark.parametrize(
    ("value", "mode"), [(None, "enabled"), (1, "enabled"), ("yes", "diagnostic"), (Scored(1, 1), "diagnostic")]
)
def test_an_is_better_that_is_no_truth_value_puts_the_candidate_out(tmp_path, value, mode):
    def is_better(self, result, other):
        return value if result.score == 30 else result.score > other.score

    strategy = mine(_is_better=is_better).enable_performance_validation(mode)
    assert run(strategy, tmp_path).describe() == "Fake(a)"
    assert "Mine._is_better returned" in outcome_of(strategy, "b").reason


def refuses(self, result, other):
    raise ZeroDivisionError("cannot say")


@pytest.mark.parametrize("is_better", [None, "yes", refuses])
def test_an_is_better_that_cannot_rank_candidates_is_named(tmp_path, is_better):
    # Without a baseline it is asked for the first time when two candidates are ranked.
    strategy = mine(_is_better=is_better).enable_performance_validation(False)
    with pytest.raises(AITuneUserInputError, match=r"Mine\._is_better (returned|raised).*expected True or False"):
        run(strategy, tmp_path)


@pytest.mark.parametrize("answer", [np.bool_, torch.tensor])
def test_an_is_better_of_numpy_or_torch_is_taken(tmp_path, answer):
    strategy = mine(_is_better=lambda self, result, other: answer(result.score > other.score))
    assert run(strategy, tmp_path).describe() == "Fake(b)"
    assert all(type(result.passed) is bool for result in strategy.perf_validation_results)


@pytest.mark.parametrize("value", [math.nan, math.inf, 0, -1.0, None, "2x", True])
def test_a_speedup_that_is_no_positive_number_puts_the_candidate_out(tmp_path, value):
    strategy = mine(_speedup=lambda self, result, baseline: value if result.score == 30 else 2.0)
    assert run(strategy, tmp_path).describe() == "Fake(a)"
    assert "what Mine._speedup returned is" in outcome_of(strategy, "b").reason


@pytest.mark.parametrize(
    "value", [None, "fast", 3.0, (1, 2.0), Scored(0, 5.0), Scored("1", 5.0), Scored(1, True), Scored(1, None), Scored]
)
def test_a_measurement_that_is_none_puts_the_candidate_out_and_names_the_hook(tmp_path, value):
    def measure(self, backend, *args):
        return value if backend.describe() == "Fake(b)" else ByTable._measure(self, backend, *args)

    strategy = mine(_measure=measure)
    assert run(strategy, tmp_path).describe() == "Fake(a)"
    assert "Mine._measure" in outcome_of(strategy, "b").reason
    with pytest.raises(ProfilingError, match=r"Mine\._measure"):
        run(mine(_measure=lambda self, *args: value), tmp_path)


@pytest.mark.parametrize("entries", [None, "fast", ["score"], {"score": "fast"}, {"score": None}])
def test_a_result_whose_fields_are_no_numbers_is_out(tmp_path, entries):
    class Odd(Scored):
        def to_json_dict(self, metric_label):
            return entries

    def measure(self, backend, *args):
        return Odd(1, 30.0) if backend.describe() == "Fake(b)" else ByTable._measure(self, backend, *args)

    strategy = mine(_measure=measure)
    assert run(strategy, tmp_path).describe() == "Fake(a)"
    assert "Odd.to_json_dict returned" in outcome_of(strategy, "b").reason


@pytest.mark.parametrize("parts", [None, "one line", [1, 2]])
def test_a_description_that_is_no_list_of_lines(parts):
    with pytest.raises(AITuneUserInputError, match=r"Mine\._describe_parts returned"):
        mine(_describe_parts=lambda self: parts).describe()


@pytest.mark.parametrize("hook", ["__init__", "_reset"])
def test_a_method_that_forgets_its_super_is_named(tmp_path, hook):
    strategy = overriding(**{hook: lambda self, *args, **kwargs: None})({}, fakes("a"))
    with pytest.raises(AITuneUserInputError, match=rf"Mine\.{hook} does not call super\(\)\.{hook}\(\)"):
        run(strategy, tmp_path)


@pytest.mark.parametrize("switch", ["enable_correctness_check", "enable_find_max_batch_size"])
@pytest.mark.parametrize("value", ["off", None, 0])
def test_a_switch_takes_true_or_false(switch, value):
    with pytest.raises(AITuneUserInputError, match=rf"{switch} must be True or False, got"):
        getattr(ByTable({}, []), switch)(value)


# -- figures of every kind -------------------------------------------------------------------------------------------

KINDS = [np.float64, np.float32, np.int64, np.array, torch.tensor, lambda value: torch.tensor(float(value)), int]


@pytest.mark.parametrize("kind", KINDS)
def test_a_metric_of_any_real_kind_is_taken_and_reported_as_a_float(tmp_path, kind):
    def measure(self, backend, *args):
        return Scored(np.int64(2), kind(self.table[backend.describe()]))

    strategy = mine(_measure=measure, _speedup=lambda self, one, other: kind(2))
    assert run(strategy, tmp_path).describe() == "Fake(b)"
    found = strategy.perf_validation_results[1]
    assert (found.metric, found.baseline_metric, found.speedup) == (30.0, 10.0, 2.0)
    assert {type(value) for value in (found.metric, found.baseline_metric, found.speedup)} == {float}
    assert json.loads(json.dumps(strategy.strategy_results))["Fake-b"] == {"selected_batch_size": 2, "score": 30.0}
    assert "30.00 points" in strategy.report.reason


# -- after the decision ----------------------------------------------------------------------------------------------


def gives_up(self, *args):
    raise ZeroDivisionError("lost for words")


@pytest.mark.parametrize("hook", ["_post_tune", "_log_baseline_selected", "_fmt", "to_json_dict"])
@pytest.mark.parametrize(("scores", "expected"), [(SCORES, "Fake(b)"), ({**SCORES, ORIGINAL: 99}, ORIGINAL)])
def test_a_hook_that_fails_after_the_decision_does_not_lose_it(tmp_path, hook, scores, expected):
    strategy = mine(scores=scores, **{hook: gives_up})
    assert run(strategy, tmp_path).describe() == expected
    said = [warning for warning in strategy.report.warnings if f"Mine.{hook} raised ZeroDivisionError" in warning]
    assert len(said) == (0 if hook == "_log_baseline_selected" and expected != ORIGINAL else 1)
    assert strategy.report.winner == (BASELINE_KEY if expected == ORIGINAL else "Fake-b")
    assert strategy.report.reason


@pytest.mark.parametrize("value", [None, 12.5, b"12"])
def test_words_that_are_none_are_replaced_by_the_number(tmp_path, value):
    strategy = mine(_fmt=lambda self, metric: value)
    assert run(strategy, tmp_path).describe() == "Fake(b)"
    assert strategy.report.reason == "its score of 30 is better than the original module's 10"
    assert any("Mine._fmt" in warning for warning in strategy.report.warnings)


def test_a_format_that_does_not_exist_costs_only_the_words(tmp_path):
    strategy = mine()
    strategy._value_fmt = "no such format"
    assert run(strategy, tmp_path).describe() == "Fake(b)"
    assert any("ValueError" in warning for warning in strategy.report.warnings)


@pytest.mark.parametrize("settings", [None, {"meter": object()}, [1]])
def test_settings_that_are_no_plain_data_do_not_lose_the_result(tmp_path, settings):
    strategy = mine(to_json_dict=lambda self: settings)
    assert run(strategy, tmp_path).describe() == "Fake(b)"
    assert json.loads(json.dumps(strategy.report.strategy)) == {"strategy": "Mine"}
    assert any("Mine.to_json_dict" in warning for warning in strategy.report.warnings)


def test_an_interrupt_in_a_last_hook_is_one(tmp_path):
    def interrupted(self, *args):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(mine(_post_tune=interrupted), tmp_path)


# -- preparations left out -------------------------------------------------------------------------------------------


def prepares_nothing(self, *args):
    pass


@pytest.mark.parametrize("mode", ["enabled", "diagnostic", "disabled"])
def test_what_pre_tune_left_out_is_made_up_for(tmp_path, mode):
    backends = [FakeBackend("wrong", add_offset), FakeBackend("a")]
    scores = {ORIGINAL: 10, "Fake(wrong)": 99, "Fake(a)": 5}
    strategy = mine(backends, scores, _pre_tune=prepares_nothing).enable_performance_validation(mode)
    assert run(strategy, tmp_path).describe() == (ORIGINAL if mode == "enabled" else "Fake(a)")
    assert outcome_of(strategy, "wrong").status == "rejected"
    assert (BASELINE_KEY in {outcome.key for outcome in strategy.report.outcomes}) == (mode != "disabled")


def test_a_shipped_strategy_without_its_preparations_is_never_slower_than_the_original(tmp_path):
    machine = SimulatedMachine()
    strategy = overriding(MaxThroughputStrategy, _pre_tune=prepares_nothing)([TimedBackend("slow", machine, 0.009)])
    assert run(with_context(strategy, machine), tmp_path, TimedNet(machine, 0.005)).describe() == ORIGINAL
    assert strategy.report.comparisons


def test_a_baseline_of_the_authors_own_is_not_measured_again(tmp_path):
    backend = FakeBackend("theirs")
    strategy = mine(scores={"Fake(a)": 20, "Fake(b)": 30}, **as_the_baseline(backend))
    assert run(strategy, tmp_path).describe() == "Fake(theirs)"


@pytest.mark.parametrize("result", [5.0, Scored(1, math.nan), _TuneCandidate])
def test_a_baseline_of_the_authors_own_that_cannot_be_compared_is_an_error(tmp_path, result):
    def pre_tune(self, *args):
        self._baseline_backend, self._baseline_result = built(self, FakeBackend("theirs")), result

    with pytest.raises(AITuneError, match=r"Mine\._pre_tune"):
        run(mine(_pre_tune=pre_tune), tmp_path)


@pytest.mark.parametrize("hook", ["_run_backends", "_resolve_winner"])
@pytest.mark.parametrize("result", [None, 5.0, Scored(1, math.nan), Scored(1, 0)])
def test_a_candidate_whose_result_cannot_be_compared_is_an_error(tmp_path, hook, result):
    strategy = mine(**{hook: lambda self, *args: _TuneCandidate(built(self, FakeBackend("own")), result)})
    with pytest.raises(ProfilingError, match=rf"Mine\.{hook}"):
        run(strategy, tmp_path)


# -- whatever else ---------------------------------------------------------------------------------------------------

PAGE_HOOKS = [
    "_configure_for_module", "_pre_tune", "_tune", "_post_tune", "_run_backends", "_resolve_winner", "_measure",
    "_is_better", "_speedup", "_record_perf_result", "_get_profiling_config", "_describe_parts", "_fmt",
    "_log_baseline_selected", "_default_backends", "_resolve_default_backends",
]  # fmt: skip


@pytest.mark.parametrize("value", [None, "text"])
@pytest.mark.parametrize("hook", PAGE_HOOKS)
def test_whatever_a_hook_returns_the_run_ends_with_a_backend_or_with_an_error_of_aitune(tmp_path, caplog, hook, value):
    caplog.set_level(logging.CRITICAL)
    listed = {"_default_aot_backends": lambda self, distributed=False: fakes("a", "b")}
    strategy = with_context(overriding(**{**listed, hook: lambda self, *args: value})(SCORES))
    with suppress(AITuneError):
        assert run(strategy, tmp_path).is_active
        assert strategy.report.winner in {outcome.key for outcome in strategy.report.outcomes}
