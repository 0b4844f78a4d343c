import subprocess
import sys
from dataclasses import replace

import pytest
from strategy_parts import ORIGINAL, ByTable, DistributedNet, fakes, run, with_context
from torch import nn

from aitune.exceptions import AITuneUserInputError
from aitune.testing.fakes import FakeBackend
from aitune.torch.backend.registry import BackendEntry, BackendRegistry, override_registry, registry
from aitune.torch.task.accuracy_budget import AccuracyBudget
from aitune.torch.tune_strategy.context import TuningContext
from aitune.torch.tune_strategy.default_candidates import ModuleKind, default_aot_candidates, default_jit_candidates
from aitune.torch.tune_strategy.max_throughput_strategy import MaxThroughputStrategy

ORDINARY = nn.Linear(4, 3)


class Counting(ByTable):
    """Writes down which defaults were made."""

    def __init__(self, *args, **kwargs):
        self.made = []
        super().__init__({}, *args, **kwargs)

    def _default_aot_backends(self, distributed=False):
        self.made.append(("aot", self._kind.device, distributed))
        return fakes("spread" if distributed else f"plain-{self._kind.device}")

    def _default_jit_backends(self, distributed=False):
        self.made.append(("jit", self._kind.device, distributed))
        return fakes("just")


def configured(strategy, module):
    strategy._configure_for_module(module)
    return [backend.label for backend in strategy._backends]


def test_defaults_are_made_when_the_module_is_known_and_again_when_its_kind_changes():
    strategy = Counting()
    assert strategy._resolved_backends is None
    assert configured(strategy, ORDINARY) == ["plain-cpu"]
    before = strategy._backends
    assert configured(strategy, nn.Linear(2, 2)) == ["plain-cpu"]
    assert strategy._backends is before
    assert configured(strategy, DistributedNet()) == ["spread"]
    assert configured(strategy, ORDINARY) == ["plain-cpu"]
    assert strategy.made == [("aot", "cpu", False), ("aot", "cpu", True), ("aot", "cpu", False)]


def test_defaults_are_made_again_for_a_module_on_another_device():
    strategy = Counting()
    assert configured(strategy, ORDINARY) == ["plain-cpu"]
    assert configured(strategy, nn.Linear(2, 2, device="meta")) == ["plain-meta"]
    assert configured(strategy, ORDINARY) == ["plain-cpu"]


@pytest.mark.parametrize("backends", [[], fakes("mine")])
def test_an_explicit_list_wins_whatever_the_module_is(backends):
    strategy = Counting(backends)
    for module in (ORDINARY, DistributedNet(), ORDINARY):
        assert configured(strategy, module) == [backend.label for backend in backends]
    assert strategy.made == []
    assert strategy._resolved_backends is None


def test_a_reused_strategy_runs_with_the_candidates_of_each_module(tmp_path):
    strategy = with_context(Counting())
    strategy.table = {ORIGINAL: 1.0, "Fake(plain-cpu)": 2.0, "Fake(spread)": 2.0}
    winners = [run(strategy, tmp_path, module).describe() for module in (ORDINARY, DistributedNet(), nn.Linear(4, 3))]
    assert winners == ["Fake(plain-cpu)", "Fake(spread)", "Fake(plain-cpu)"]


def test_only_the_candidates_of_the_workflow_are_made():
    for workflow, label in (("aot", "plain-cpu"), ("jit", "just")):
        strategy = Counting(workflow=workflow)
        assert configured(strategy, ORDINARY) == [label]
        assert [made[0] for made in strategy.made] == [workflow]


def test_for_aot_is_the_regular_constructor():
    strategy = Counting.for_aot(backends=fakes("mine"))
    assert strategy.to_json_dict() == Counting(fakes("mine")).to_json_dict()


def test_for_jit_takes_the_other_candidates_and_does_not_search_for_a_batch_size():
    strategy = Counting.for_jit()
    assert configured(strategy, ORDINARY) == ["just"]
    assert strategy.to_json_dict()["find_max_batch_size"] is False
    assert Counting.for_jit(backends=fakes("mine"))._backends[0].label == "mine"


@pytest.mark.parametrize("make", [Counting.for_aot, Counting.for_jit])
def test_a_workflow_beside_the_workflow_is_an_error(make):
    with pytest.raises(AITuneUserInputError, match="sets the workflow"):
        make(workflow="aot")


@pytest.mark.parametrize("workflow", ["AOT", "both", None, 1])
def test_an_unknown_workflow_is_an_error(workflow):
    with pytest.raises(AITuneUserInputError, match="one of 'aot', 'jit'"):
        MaxThroughputStrategy(workflow=workflow)


@pytest.mark.parametrize(
    ("backends", "part"),
    [
        ([FakeBackend], r"the class FakeBackend; give an instance: FakeBackend\(\)"),
        (["ONNXRuntime"], "must hold backends, got 'ONNXRuntime'"),
        (FakeBackend(), "must be a list of backends"),
        ({"a": FakeBackend()}, "must be a list of backends"),
        (fakes("a", "b", "a"), "Fake-a twice"),
    ],
)
def test_a_list_that_is_none(backends, part):
    with pytest.raises(AITuneUserInputError, match=part):
        MaxThroughputStrategy(backends)


# -- default candidates ----------------------------------------------------------------------------------------------


def names(backends):
    return [backend.describe() for backend in backends]


def test_on_a_cpu():
    cpu = ["ONNXRuntime", "OpenVINO", "TorchInductorAot", "TorchInductorJit"]
    assert names(default_aot_candidates(ModuleKind.of(ORDINARY), False)) == cpu
    convolution = default_aot_candidates(ModuleKind.of(nn.Sequential(nn.Conv2d(3, 4, 3))), False)
    assert names(convolution) == [*cpu, "TorchEager(channels_last=True)"]
    assert names(default_jit_candidates(ModuleKind.of(ORDINARY), False)) == [
        "ONNXRuntime",
        "OpenVINO",
        "TorchInductorJit",
    ]


LOSSY = [
    "OpenVINO(precision=bf16)",
    "ONNXRuntime(quantization=int8_dynamic)",
    "TorchEager(autocast_enabled=True)",
    "TorchInductorJit(autocast_enabled=True)",
    "TorchAO(int8_dynamic)",
]


def test_a_budget_lets_candidates_in_that_give_precision_away():
    kind = replace(ModuleKind.of(ORDINARY), may_lose_precision=True)
    exact = default_aot_candidates(ModuleKind.of(ORDINARY), False)
    found = default_aot_candidates(kind, False)
    assert names(found) == [*names(exact), *LOSSY]
    assert [backend.is_exact for backend in found] == [True] * len(exact) + [False] * len(LOSSY)
    assert names(default_jit_candidates(kind, False))[-3:] == LOSSY[:3]
    convolutions = replace(kind, has_convolutions=True)
    assert names(default_aot_candidates(convolutions, False))[-1] == (
        "TorchEager(autocast_enabled=True, channels_last=True)"
    )


def test_a_strategy_asks_for_them_when_a_budget_is_set():
    budget = AccuracyBudget(max_relative_error=0.1)
    for strategy in (MaxThroughputStrategy(accuracy_budget=budget), MaxThroughputStrategy()):
        strategy.use_context(TuningContext(accuracy_budget=budget))
        strategy._configure_for_module(ORDINARY)
        assert names(strategy._backends)[-len(LOSSY) :] == LOSSY
    strategy.use_context(TuningContext())
    strategy._configure_for_module(ORDINARY)
    assert all(backend.is_exact for backend in strategy._backends)


def test_distributed_modules_keep_their_processes():
    for make in (default_aot_candidates, default_jit_candidates):
        assert names(make(ModuleKind(distributed=True), True)) == ["TorchInductorJit", "TorchInductorAot"]


class TunableBackend(FakeBackend):
    def __init__(self, config=None):
        from aitune.torch.backend.torch_eager import TorchEagerBackendConfig

        super().__init__("tunable")
        self.config = config or TorchEagerBackendConfig()


def test_on_cuda_those_that_are_registered():
    assert names(default_aot_candidates(ModuleKind("cuda"), False)) == ["TorchInductorAot", "TorchInductorJit"]
    assert names(default_jit_candidates(ModuleKind("cuda"), False)) == ["TorchInductorJit"]
    entry = BackendEntry("TorchTensorRTAot", "test_multi_backend_strategy:TunableBackend")
    with override_registry(BackendRegistry([*registry.entries, entry])):
        found = names(default_aot_candidates(ModuleKind("cuda"), False))
    assert found == ["TorchInductorAot", "Fake(tunable)", "TorchInductorJit"]


@pytest.mark.parametrize(
    ("module", "expected"),
    [
        (nn.Linear(2, 2), ModuleKind("cpu", False, False)),
        (nn.Identity(), ModuleKind("cpu", False, False)),
        (nn.Sequential(nn.Conv2d(1, 1, 1)), ModuleKind("cpu", False, True)),
        (nn.Conv1d(1, 1, 1), ModuleKind("cpu", False, False)),
        (DistributedNet(), ModuleKind("cpu", True, False)),
        (nn.Linear(2, 2, device="meta"), ModuleKind("meta", False, False)),
    ],
)
def test_what_a_module_is(module, expected):
    assert ModuleKind.of(module) == expected


def test_an_fsdp_module_is_recognised_by_its_class():
    fsdp = type("FSDPModule", (), {})
    sharded = type("FSDPLinear", (fsdp, nn.Linear), {})
    assert ModuleKind.of(nn.Sequential(sharded(2, 2))).distributed


def test_a_candidate_that_cannot_run_here_is_in_the_report_once_with_its_reason(tmp_path):
    entry = BackendEntry("Fake", "aitune.testing.fakes:FakeBackend", required_packages=("no_such_package",), extra="x")
    with override_registry(BackendRegistry([*registry.entries, entry])):
        strategy = with_context(ByTable({ORIGINAL: 1.0}, fakes("a")))
        run(strategy, tmp_path)
    reasons = [outcome.reason for outcome in strategy.backend_results if outcome.status == "unavailable"]
    assert reasons == ['no_such_package not installed; run: pip install "aitune-open[x]"']


def test_a_strategy_in_a_fresh_process_imports_no_backend_package():
    code = """
import sys
import torch
import aitune.torch as ait
s = ait.MaxThroughputStrategy()
s.describe(), s.to_json_dict(), s.clone(), ait.MinLatencyStrategy(), ait.LatencyBudgetStrategy(5.0)
ait.FirstWinsStrategy(), ait.OneBackendStrategy(s._backends[0])
lossy = ait.AccuracyBudget(max_relative_error=0.1)
for workflow in ("aot", "jit"):
    each = ait.MaxThroughputStrategy(workflow=workflow, accuracy_budget=lossy)
    for device in ("cpu", "meta"):
        each._configure_for_module(torch.nn.Conv2d(1, 1, 1, device=device))
        each.describe(), each.to_json_dict(), [backend.key() for backend in each._backends]
unwanted = ("onnx", "onnxruntime", "onnxscript", "openvino", "tensorrt", "torchao", "transformers", "scipy", "rich",
            "typer", "torch._dynamo", "torch._inductor", "torch.onnx")
print(sorted(name for name in unwanted if name in sys.modules))
"""
    child = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert child.returncode == 0, child.stderr
    assert child.stdout.strip() == "[]"
