"""The parts of the benchmarks that judge: what is a miss must not be printed as met."""

import argparse
import json
import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import bench_tools
import checking_time
import dispatch
import noise
import run_all
import zoo

ORACLE = {
    "speedups": {"eager": 1.0, "onnx": 1.5, "openvino": 1.8, "int8": 3.0},
    "names": {"eager": "eager", "onnx": "ONNXRuntime", "openvino": "OpenVINO", "int8": "int8"},
    "exact": ["eager", "onnx", "openvino"],
}


def choice(winner, seconds=30.0):
    return {"winner": winner, "description": winner, "speedup_in_report": 9.9, "seconds": seconds}


@pytest.mark.parametrize(
    ("mode", "winner", "speedup", "best"),
    [
        ("exact", "onnx", 1.5, 1.8),
        ("exact", "eager", 1.0, 1.8),
        ("lossy", "onnx", 1.5, 3.0),
        ("lossy", "int8", 3.0, 3.0),
    ],
)
def test_a_choice_counts_what_the_oracle_measured_among_what_was_allowed(mode, winner, speedup, best):
    judged = zoo.judge("mlp", mode, choice(winner), ORACLE)
    assert (judged.speedup, judged.best_speedup) == (speedup, best)
    assert judged.regret == pytest.approx(best / speedup - 1.0)


def test_stored_parts_are_judged_and_what_is_missed_is_said(tmp_path, capsys):
    options = zoo.parse(["--table", "--out", str(tmp_path), "--json", str(tmp_path / "zoo.json")])
    for kind in zoo.ZOO:
        zoo.stored(options, kind, "oracle").write_text(json.dumps(ORACLE))
        zoo.stored(options, kind, "exact").write_text(json.dumps(choice("onnx", 90.0)))
    assert zoo.main(["--table", "--out", str(tmp_path), "--json", str(tmp_path / "zoo.json")]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert "exact, geometric mean over that of the oracle: 0.833 (wanted: at least 0.95): MISSED" in lines
    assert "exact, worst regret: 0.200 (wanted: at most 0.1): MISSED" in lines
    assert "exact, slowest model over eager: 1.500 (wanted: at least 0.99): met" in lines
    assert "exact, median seconds a model: 90.000 (wanted: at most 60): MISSED" in lines
    assert len(json.loads((tmp_path / "zoo.json").read_text())["rows"]) == len(zoo.ZOO)


def row(truth, verdicts, condition="quiet"):
    counts = {verdict: verdicts.get(verdict, 0) for verdict in noise.VERDICTS}
    return noise.Row(condition, truth, "all", sum(counts.values()), counts, 1.0, 0.01, 1.0, 2.0, 5.0)


@pytest.mark.parametrize(
    ("truth", "verdicts", "met"),
    [
        ("same", {"tie": 147, "faster": 3}, True),
        ("same", {"tie": 146, "faster": 4}, False),
        ("same", {"tie": 20}, None),
        ("5%", {"faster": 57, "tie": 3}, True),
        ("5%", {"faster": 56, "tie": 4}, False),
        ("0.5%", {"tie": 60}, True),
        ("0.5%", {"tie": 59, "faster": 1}, False),
    ],
)
def test_what_noise_has_to_show(truth, verdicts, met):
    assert noise.requirements([row(truth, verdicts)], 20.0)[0].met is met


@pytest.mark.parametrize("length", noise.LENGTHS)
def test_the_truth_is_in_the_construction(length):
    candidate, opponent, _ = noise.contestants("5%", length)
    assert opponent._repeats / candidate._repeats == 1.05
    assert opponent._source.data_ptr() == candidate._source.data_ptr()
    assert opponent._source.numel() == candidate._source.numel()
    candidate, opponent, _ = noise.contestants("0.5%", length)
    assert opponent._source.numel() / candidate._source.numel() == pytest.approx(1.005)
    same, other, _ = noise.contestants("same", length)
    assert same is other


def test_a_benchmark_that_fails_does_not_pass_with_the_result_of_an_earlier_run(tmp_path):
    (tmp_path / "no_such.json").write_text("{}")
    ended = run_all.run(run_all.Program("no_such"), True, tmp_path)
    assert ended["status"] != 0
    assert ended["result"] is None


@pytest.mark.parametrize(("overhead", "met"), [(2.0, True), (2.1, False)])
def test_dispatch_is_judged_by_what_is_added_to_a_call(overhead, met):
    figures = dispatch.Figures("one tensor", 1.0, 1.0 + overhead, overhead, 2.0, 4.0, 1.0, 2.0)
    assert figures.requirement().met is met


def test_ratios_are_medians_over_rounds():
    times = {"eager": [2.0, 4.0, 8.0], "fast": [1.0, 1.0, 8.0]}
    assert bench_tools.ratios(times, "eager") == {"eager": 1.0, "fast": 2.0}


def test_turns_are_fair():
    calls = dict.fromkeys("ab", lambda: torch.zeros(1).add_(1))
    times = bench_tools.take_turns(calls, bench_tools.Turn(rounds=3, block_seconds=0.001, pause_seconds=0.0))
    assert {name: len(each) for name, each in times.items()} == {"a": 3, "b": 3}


def test_settings_of_a_result_are_plain(tmp_path):
    options = argparse.Namespace(trials=3, json=tmp_path / "x.json", only=["a"])
    bench_tools.write_json(options.json, bench_tools.plain(options), [{"x": 1}])
    stored = json.loads(options.json.read_text())
    assert stored["settings"] == {"trials": 3, "only": ["a"]}
    assert stored["machine"]


@pytest.mark.parametrize(
    ("check_seconds", "status", "met"),
    [((1.0, 2.0, 9.0), "ok", True), ((1.0, 2.1, 9.0), "ok", False), ((1.0, 1.0, 1.0), "failed", False)],
)
def test_checking_is_judged_by_the_median_of_what_came_through(check_seconds, status, met):
    candidates = [checking_time.Checked("mlp", "ONNXRuntime", status, 2.0, seconds) for seconds in check_seconds]
    model = checking_time.Model("mlp", 0.5, tuple(candidates))
    (requirement,) = checking_time.requirements_of([model])
    assert requirement.met is met
