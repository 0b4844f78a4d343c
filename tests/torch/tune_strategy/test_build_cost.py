import pytest

from aitune.torch.task.outcome import CandidateOutcome
from aitune.torch.tune_strategy.build_cost import predict_seconds, why_no_time


def seen(backend, build, check=0.0, measure=0.0, status="ok", is_baseline=False):
    return CandidateOutcome(
        backend,
        backend,
        backend,
        status,
        "measure",
        build_seconds=build,
        check_seconds=check,
        measure_seconds=measure,
        is_baseline=is_baseline,
    )


def test_before_anything_was_built_the_usual_times_hold():
    assert predict_seconds("ONNXRuntime", []) == pytest.approx(6.0)
    assert predict_seconds("TorchInductorAot", []) == pytest.approx(28.0)
    assert predict_seconds("Mine", []) == pytest.approx(23.0)


def test_builds_of_this_run_set_the_pace():
    outcomes = [seen("ONNXRuntime", 6.0, 1.0, 1.0), seen("OpenVINO", 9.0, 1.0, 3.0)]
    # Two and three times their usual 3 s: Inductor is expected at 2.5 times its 20 s, and 3 s to try it.
    assert predict_seconds("TorchInductorJit", outcomes) == pytest.approx(53.0)


def test_the_same_backend_with_other_options_is_expected_to_take_what_it_took():
    assert predict_seconds("ONNXRuntime", [seen("ONNXRuntime", 40.0, 0.5, 0.5)]) == pytest.approx(41.0)


def test_a_build_that_failed_at_once_and_the_baseline_say_nothing():
    outcomes = [seen("OpenVINO", 0.0, status="failed"), seen("TorchEager", 0.4, is_baseline=True)]
    assert predict_seconds("ONNXRuntime", outcomes) == predict_seconds("ONNXRuntime", [])


def test_the_reason_says_what_it_would_have_cost():
    assert why_no_time("ONNXRuntime", [], None) is None
    assert why_no_time("ONNXRuntime", [], 6.5) is None
    expected = "not begun: it would take about 28 s, and 12 s of the time budget are left"
    assert why_no_time("TorchInductorAot", [], 12.2) == expected
    assert why_no_time("TorchInductorAot", [], -3.0).endswith("0 s of the time budget are left")
