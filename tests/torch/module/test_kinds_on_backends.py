"""Every kind of call on every backend of a CPU: the answer is eager's, or the backend is refused and says why."""

import copy
import logging
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from kinds_of_calls import KINDS, Kind
from serving_fakes import call, record
from torch.utils import _pytree as pytree

from aitune.exceptions import AITuneError, TuningError
from aitune.torch.backend.backend import Backend
from aitune.torch.backend.onnx_runtime_backend import ONNXRuntimeBackend
from aitune.torch.backend.openvino_backend import OpenVINOBackend
from aitune.torch.backend.registry import registry
from aitune.torch.backend.torch_eager import TorchEagerBackend
from aitune.torch.backend.torch_inductor_aot_backend import TorchInductorAotBackend
from aitune.torch.backend.torch_inductor_jit_backend import TorchInductorJitBackend
from aitune.torch.module.containers import register_containers
from aitune.torch.module.graph_spec import GraphSpec
from aitune.torch.module.recording_module import recorded_batch_size
from aitune.torch.module.sample import Sample
from aitune.torch.module.wrapper_module import Module
from aitune.torch.task.reference import make_references
from aitune.torch.tune_strategy.candidate import CandidateTask, evaluate_candidate

QUICK = [TorchEagerBackend, ONNXRuntimeBackend, OpenVINOBackend]
COMPILED = [TorchInductorAotBackend, TorchInductorJitBackend]
# What compiling takes seconds for is tried where compilers are known to differ.
COMPILED_KINDS = [
    "one object for two arguments", "not contiguous", "lazily negated", "an int", "changes its input",
    "branches on sizes", "lengths equal by chance", "a dataclass", "random",
]  # fmt: skip
KNOWN_TO_BE_WRONG: dict[tuple[type[Backend], str], str] = {}


def case(backend: type[Backend], name: str, *marks: pytest.MarkDecorator) -> Any:
    known = KNOWN_TO_BE_WRONG.get((backend, name))
    expected = [] if known is None else [pytest.mark.xfail(strict=True, reason=known)]
    return pytest.param(backend, name, id=f"{backend.__name__}-{name}", marks=[*marks, *expected])


CASES = [
    *(case(backend, name) for backend in QUICK for name in KINDS),
    *(case(backend, name, pytest.mark.slow) for backend in COMPILED for name in COMPILED_KINDS),
]


@pytest.fixture(autouse=True)
def root_logger_as_before() -> Iterator[None]:
    """OpenVINO's converter sets level and filters of the root logger when it fails, which would blind other tests."""
    root = logging.getLogger()
    level, filters = root.level, list(root.filters)
    yield
    root.setLevel(level)
    root.filters = filters


class OneBackend:
    """Builds and checks one backend as a strategy does, without measuring it."""

    def __init__(self, backend: Backend) -> None:
        self.backend = backend

    def tune(
        self,
        module: torch.nn.Module,
        name: str,
        graph_spec: GraphSpec,
        data: list[Sample],
        device: torch.device,
        cache_dir: Path,
    ) -> Backend:
        references = make_references(module, graph_spec, data)
        task = CandidateTask(self.backend, module, graph_spec, data, device, cache_dir / "build", references)
        evaluated = evaluate_candidate(task)
        if evaluated.backend is None:
            raise TuningError(f"{evaluated.outcome.status}: {evaluated.outcome.reason}")
        return evaluated.backend

    def tune_dry_run(self, *_: Any) -> None:
        """Nothing to say."""


def tune(wrapped: Module, backend: Backend) -> str | None:
    """Tune with one backend; return the reason when it is refused."""
    try:
        wrapped.tune(strategy=OneBackend(backend))
    except AITuneError as error:
        return str(error)
    return None


def assert_same(got: Any, expected: Any, compare_values: bool = True) -> None:
    register_containers([got, expected])
    left, structure = pytree.tree_flatten(got)
    right, expected_structure = pytree.tree_flatten(expected)
    assert structure == expected_structure
    for one, other in zip(left, right, strict=True):
        assert type(one) is type(other)
        if isinstance(other, torch.Tensor):
            assert (one.dtype, one.shape) == (other.dtype, other.shape)
            if compare_values:
                torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5, equal_nan=True)
        else:
            assert one == other


def assert_answers_as_eager(wrapped: Module, eager: torch.nn.Module, sample: Sample, compare_values: bool) -> None:
    own, eagers = copy.deepcopy(sample), copy.deepcopy(sample)
    with torch.no_grad():
        expected = eager(*eagers.args, **eagers.kwargs)
        got = wrapped(*own.args, **own.kwargs)
    assert_same(got, expected, compare_values)
    if not any(hasattr(leaf, "__next__") for leaf in pytree.tree_leaves(own)):
        assert_same(list(own.args), list(eagers.args))
    assert_same(wrapped.state_dict(), eager.state_dict())


def without_iterators(kind: Kind) -> list[Sample]:
    """The later calls; an iterator cannot be copied, so those calls are made anew for each side."""
    return [sample for sample in kind.later() if not any(hasattr(value, "__next__") for value in sample.args)]


@pytest.mark.parametrize(("backend_class", "name"), CASES)
def test_the_answer_is_eagers_or_the_backend_is_refused(
    backend_class: type[Backend], name: str, caplog: pytest.LogCaptureFixture
) -> None:
    backend = backend_class()
    if missing := registry.unavailable_reason(backend.name, torch.device("cpu")):
        pytest.skip(missing)
    kind = KINDS[name]
    module = kind.make()
    wrapped = record(module, *kind.recorded())
    eager = copy.deepcopy(module)
    recorded = wrapped.recording_problems
    reason = tune(wrapped, backend)
    if reason is not None:
        assert kind.refusal is not None, reason
        assert re.search(kind.refusal, " ".join([reason, *recorded])), reason
    for sample in without_iterators(kind):
        for _ in range(3):
            assert_answers_as_eager(wrapped, eager, sample, not kind.random)
    if reason is None:
        sample = kind.recorded()[0]
        before = wrapped.stats()
        with torch.no_grad():
            wrapped(*sample.args, **sample.kwargs)
        assert sum(wrapped.stats().served.values()) == sum(before.served.values()) + 1


def test_a_refusal_leaves_the_root_logger_alone() -> None:
    pytest.importorskip("openvino")
    root = logging.getLogger()
    before = root.level, list(root.filters)
    kind = KINDS["random"]
    assert tune(record(kind.make(), *kind.recorded()), OpenVINOBackend()) is not None
    assert (root.level, root.filters) == before


def test_an_iterator_is_not_used_up_by_capture() -> None:
    kind = KINDS["a generator"]
    wrapped = record(kind.make(), *kind.recorded())
    assert "list_iterator" in wrapped.recording_problems[0]
    parts = [torch.ones(1, 4), torch.ones(1, 4)]
    with torch.no_grad():
        torch.testing.assert_close(wrapped(iter(parts)), wrapped(parts))
    assert wrapped.recorded_graphs()[0].spec.input_spec == record(kind.make(), call(parts)).graph_specs[0].input_spec


@pytest.mark.full
@pytest.mark.parametrize("backend_class", [ONNXRuntimeBackend, OpenVINOBackend])
def test_a_language_model_generates_the_same_tokens_with_prefill_and_decode_tuned(backend_class: type[Backend]) -> None:
    transformers = pytest.importorskip("transformers")
    backend = backend_class()
    if missing := registry.unavailable_reason(backend.name, torch.device("cpu")):
        pytest.skip(missing)
    settings = transformers.LlamaConfig(
        hidden_size=16, intermediate_size=16, num_hidden_layers=2, num_attention_heads=2, vocab_size=32
    )
    model = transformers.LlamaForCausalLM(settings).eval()

    def generate(rows: int, length: int) -> torch.Tensor:
        ids = torch.arange(1, 1 + rows * length).reshape(rows, length)
        return model.generate(ids, max_new_tokens=4, do_sample=False, pad_token_id=0)  # type: ignore[no-any-return]

    expected = generate(2, 5)
    wrapped = Module(model)
    wrapped.enable_recording()
    for rows, length in ((1, 4), (2, 4), (1, 7), (2, 7)):
        with recorded_batch_size(rows):
            generate(rows, length)
    assert tune(wrapped, backend) is None
    assert torch.equal(generate(2, 5), expected)
    assert wrapped.stats().served == {"graph0": 1, "graph1": 3}
