import gc
import re
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch
from serving_fakes import FakeServable, FakeTuner, call, record, served, tuned

from aitune.exceptions import AITuneUserInputError, BuildError, TuningError
from aitune.torch.config import config
from aitune.torch.dynamic_shapes import BatchDim
from aitune.torch.module.wrapper_module import Module, ModuleState

CALLS = [call(torch.ones(1, 3)), call(torch.ones(2, 3))]
X = torch.randn(2, 3)


def linear() -> torch.nn.Linear:
    return torch.nn.Linear(3, 2).eval()


class Flagged(torch.nn.Module):
    """A graph for each value of the flag."""

    def forward(self, x: torch.Tensor, flag: int = 0) -> torch.Tensor:
        return x + flag


def test_what_is_no_module_and_bad_arguments_are_refused() -> None:
    with pytest.raises(AITuneUserInputError, match=r"wraps a torch\.nn\.Module, got a function"):
        Module(lambda x: x)  # type: ignore[arg-type]
    with pytest.raises(AITuneUserInputError, match="non-empty string"):
        Module(linear(), " ")
    with pytest.raises(AITuneUserInputError, match="not both"):
        Module(linear(), strategy=FakeTuner(), strategies=[FakeTuner()])


def test_wrapping_again_returns_the_wrapper_and_takes_the_new_settings() -> None:
    original = linear()
    first = Module(original, "first", dynamic_shapes={"input": (BatchDim("b", 1, 4), 3)})
    strategy = FakeTuner()
    again = Module(original, "second", strategy=strategy)
    assert again is first
    assert Module(first) is first
    assert (first.name, first.strategy) == ("second", strategy)
    assert list(first.dynamic_shapes) == ["input"]


def test_the_life_of_a_module() -> None:
    original = linear()
    wrapped = Module(original, "m")
    assert wrapped.state is ModuleState.INIT
    assert wrapped.module is original
    expected = original(X)
    wrapped = record(original, *CALLS)
    assert wrapped.state is ModuleState.RECORDING
    assert [spec.name for spec in wrapped.graph_specs] == ["graph0"]
    wrapped.tune(strategy=FakeTuner())
    assert wrapped.state is ModuleState.TUNED
    assert [*wrapped.module.backends] == [spec.input_spec for spec in wrapped.graph_specs]
    assert torch.equal(wrapped(X), expected)
    assert served(wrapped) == 1
    wrapped.deactivate()
    assert wrapped.state is ModuleState.PASSTHROUGH
    assert torch.equal(wrapped(X), expected)
    wrapped.activate()
    wrapped(X)
    assert served(wrapped) == 2
    wrapped.enable_passthrough(force=True)
    with pytest.raises(AITuneUserInputError, match="nothing was tuned"):
        wrapped.activate()
    assert wrapped.unwrap() is original


@pytest.mark.parametrize("action", ["enable_passthrough", "enable_recording"])
def test_what_was_tuned_is_given_up_only_by_force(action: str) -> None:
    wrapped = tuned(linear(), *CALLS)
    with pytest.raises(AITuneUserInputError, match="force=True"):
        getattr(wrapped, action)()
    assert wrapped.state is ModuleState.TUNED
    getattr(wrapped, action)(force=True)
    assert wrapped.state is not ModuleState.TUNED


def test_deactivating_frees_the_backends_and_activating_loads_them() -> None:
    wrapped = tuned(linear(), *CALLS)
    (backend,) = wrapped.module.backends.values()
    wrapped.deactivate()
    assert not backend.is_active
    wrapped.activate()
    assert backend.is_active


def test_tuning_without_a_record_a_call_or_a_strategy_says_what_to_do() -> None:
    wrapped = Module(linear(), "m")
    with pytest.raises(AITuneUserInputError, match="enable_recording"):
        wrapped.tune(strategy=FakeTuner())
    wrapped.enable_recording()
    with pytest.raises(AITuneUserInputError, match="no call was recorded"):
        wrapped.tune(strategy=FakeTuner())
    wrapped(X)
    with pytest.raises(AITuneUserInputError, match="no strategy for graph0"):
        wrapped.tune()
    assert isinstance(wrapped(X), torch.Tensor)


def test_a_module_on_another_device_is_not_moved() -> None:
    wrapped = record(linear(), *CALLS)
    with pytest.raises(AITuneUserInputError, match=r"module\.to\('meta'\)"):
        wrapped.tune("meta", FakeTuner())
    for device in ("abacus", "", []):
        with pytest.raises(AITuneUserInputError, match=f"{re.escape(repr(device))} is no device of torch: .*Error"):
            wrapped.tune(device, FakeTuner())
    assert wrapped.device == torch.device("cpu")


def test_one_graph_that_fails_leaves_the_others() -> None:
    calls = [call(X, flag) for flag in (0, 1)]
    wrapped = record(Flagged().eval(), *calls)
    wrapped.tune(strategy=FakeTuner(fails_for=["graph0"]))
    assert [spec.name for spec in wrapped.graph_specs] == ["graph1"]
    assert torch.equal(wrapped(X, 0), X)
    assert torch.equal(wrapped(X, 1), X + 1)
    assert wrapped.stats().fallbacks == {"outside the tuned graphs": 1}


def test_when_every_graph_fails_the_first_error_is_raised_and_the_module_is_as_it_was() -> None:
    wrapped = record(linear(), *CALLS)
    with pytest.raises(BuildError, match="graph0 fails on purpose"):
        wrapped.tune(strategy=FakeTuner(fails_for=["graph0"]))
    assert wrapped.state is ModuleState.PASSTHROUGH
    assert isinstance(wrapped(X), torch.Tensor)


def test_a_graph_whose_output_changes_its_kind_is_not_tuned() -> None:
    class Fickle(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> Any:
            return x if x.shape[0] == 1 else (x, x)

    wrapped = record(Fickle().eval(), *CALLS)
    with pytest.raises(TuningError, match="the output changes its kind"):
        wrapped.tune(strategy=FakeTuner())


def test_strategies_by_position_and_by_name() -> None:
    first, second, default = FakeTuner(), FakeTuner(), FakeTuner()
    for strategies in ([first, second], {"graph0": first, "graph1": second}):
        first.made, second.made = [], []
        wrapped = record(Flagged().eval(), *(call(X, flag) for flag in (0, 1, 2)), strategies=strategies)
        wrapped.tune(strategy=default)
        assert [fake.graph_spec.name for fake in first.made] == ["graph0"]
        assert [fake.graph_spec.name for fake in second.made] == ["graph1"]
    assert [fake.graph_spec.name for fake in default.made] == ["graph2", "graph2"]


def test_a_dry_run_builds_nothing() -> None:
    wrapped = record(linear(), *CALLS)
    tuner = FakeTuner()
    wrapped.tune(strategy=tuner, dry_run=True)
    assert (tuner.dry, tuner.made) == (["graph0"], [])
    assert wrapped.state is ModuleState.INIT


def test_a_dry_run_leaves_what_was_tuned() -> None:
    wrapped = tuned(linear(), *CALLS)
    wrapped.enable_recording(force=True)
    wrapped(X)
    wrapped.tune(strategy=FakeTuner(), dry_run=True)
    assert wrapped.state is ModuleState.TUNED
    wrapped(X)
    assert served(wrapped) == 1


def test_what_served_before_is_let_go_of_once_something_else_serves() -> None:
    wrapped = tuned(linear(), *CALLS)
    before = weakref.ref(wrapped.module)
    wrapped.enable_recording(force=True)
    wrapped(X)
    gc.collect()
    assert before() is not None
    wrapped.tune(strategy=FakeTuner())
    gc.collect()
    assert before() is None


@pytest.mark.parametrize("state", ModuleState)
def test_without_a_recording_there_is_nothing_to_cancel(state: ModuleState) -> None:
    wrapped = in_state(linear(), state)
    wrapped.cancel_recording()
    assert wrapped.state is (ModuleState.INIT if state is ModuleState.RECORDING else state)


def test_a_recording_that_is_cancelled_brings_back_what_was_tuned() -> None:
    wrapped = tuned(linear(), *CALLS)
    wrapped.enable_recording(force=True)
    wrapped(X)
    wrapped.cancel_recording()
    assert wrapped.state is ModuleState.TUNED
    wrapped(X)
    assert served(wrapped) == 1


def test_an_error_inside_the_block_puts_everything_back() -> None:
    wrapped = tuned(linear(), *CALLS)
    with pytest.raises(KeyboardInterrupt), wrapped.unchanged_on_error():  # noqa: PT012 - the block is what is tested
        wrapped.enable_recording(force=True)
        raise KeyboardInterrupt
    assert wrapped.state is ModuleState.TUNED
    wrapped(X)
    assert served(wrapped) == 1


def test_no_sample_is_left_on_the_disk_after_tuning_or_cancelling() -> None:
    samples = config.resolve_cache_dir() / "samples"
    wrapped = record(linear(), *CALLS)
    assert list(samples.rglob("*.safetensors"))
    wrapped.tune(strategy=FakeTuner())
    assert not list(samples.iterdir())
    wrapped.enable_recording(force=True)
    wrapped(X)
    wrapped.cancel_recording()
    assert not list(samples.iterdir())


def in_state(original: torch.nn.Module, state: ModuleState) -> Module:
    if state is ModuleState.TUNED:
        return tuned(original, *CALLS)
    wrapped = Module(original)
    if state is ModuleState.RECORDING:
        wrapped.enable_recording()
    elif state is ModuleState.PASSTHROUGH:
        wrapped.enable_passthrough()
    return wrapped


@pytest.mark.parametrize("state", ModuleState)
@pytest.mark.parametrize("called", ["proxy", "original", "parent"])
def test_hooks_run_once_a_call_in_every_state_and_may_change_it(state: ModuleState, called: str) -> None:
    original = linear()
    expected = original(X + 1) * 2
    before: list[str] = []
    original.register_forward_pre_hook(lambda module, args: before.append("early"))
    wrapped = in_state(original, state)
    original.register_forward_pre_hook(lambda module, args: (args[0] + 1,))
    wrapped.register_forward_hook(lambda module, args, output: output * 2)
    keywords: list[dict[str, Any]] = []
    wrapped.register_forward_pre_hook(lambda module, args, kwargs: keywords.append(kwargs), with_kwargs=True)
    holders = {"proxy": wrapped, "original": original, "parent": torch.nn.Sequential(original)}
    before.clear()
    with torch.no_grad():
        answer = holders[called](X)
    assert before == ["early"]
    assert keywords == [{}]
    torch.testing.assert_close(answer, expected)
    if state is ModuleState.TUNED:
        assert served(wrapped) == 1


@pytest.mark.parametrize("state", ModuleState)
def test_unwrapping_leaves_nothing_and_the_state_dict_never_changes(state: ModuleState) -> None:
    original = linear()
    before, weights = dict(original.__dict__), dict(original.state_dict())
    expected = original(X)
    wrapped = in_state(original, state)
    assert list(original.state_dict()) == list(weights)
    assert torch.equal(wrapped(X), expected)
    assert wrapped.unwrap() is original
    assert original.__dict__ == before
    assert Module(original) is not wrapped


def test_a_buffer_that_counts_calls_is_not_advanced_by_tuning() -> None:
    class Counting(torch.nn.Module):
        calls: torch.Tensor

        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("calls", torch.zeros((), dtype=torch.int64))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.calls += 1
            return x + self.calls

    original = Counting().eval()
    wrapped = record(original, *CALLS)
    assert original.calls == 2
    wrapped.tune(strategy=FakeTuner(follows_weights=True))
    assert original.calls == 2
    assert torch.equal(wrapped(X), X + 3)


def test_to_dict_and_from_dict(tmp_path: Path) -> None:
    wrapped = tuned(linear(), *CALLS)
    state = wrapped.to_dict()
    assert [entry["backend"] for entry in state["graphs"]] == [{"graph": "graph0"}]
    fresh = linear()
    fresh.load_state_dict(wrapped.state_dict())
    specs = wrapped.graph_specs
    restored = Module.from_dict(
        fresh, {**state, "name": "other"}, restore=lambda module, entry: FakeServable(module, specs[0])
    )
    assert restored.state is ModuleState.TUNED
    assert restored.graph_specs[0].input_spec == specs[0].input_spec
    assert torch.equal(restored(X), wrapped(X))
    assert served(restored) == 1
    with pytest.raises(AITuneUserInputError, match="not tuned"):
        Module(linear(), "third").to_dict()


def test_hooks_of_submodules_are_said_when_tuning(caplog: pytest.LogCaptureFixture) -> None:
    original = torch.nn.Sequential(linear())
    original[0].register_forward_hook(lambda *_: None)
    tuned(original, *CALLS)
    assert "the forward hooks of 0 take part in the answers only" in caplog.text
