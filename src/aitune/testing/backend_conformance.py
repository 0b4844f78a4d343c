# ruff: noqa: D102 - the name of a test says what it shows
"""What every backend must do, as a suite of tests; a backend's test class inherits it and says how to make one.

::

    class TestMyBackend(BackendConformance):
        @classmethod
        def make_backend(cls):
            return MyBackend()

The suite runs on the CPU, needs pytest, and builds once.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch

from aitune.exceptions import ArtifactError, BackendStateError
from aitune.testing.fresh_process import infer_in_fresh_process, state_from_json, state_to_json
from aitune.testing.graphs import record_graph
from aitune.testing.tiny_models import tiny_encoder, tiny_encoder_call
from aitune.torch.backend.artifact_path import ArtifactPath
from aitune.torch.backend.backend import Backend
from aitune.torch.backend.registry import BackendEntry, registry
from aitune.torch.dynamic_shapes import BatchDim, DynamicDim, DynamicShapes
from aitune.torch.module.sample import Sample

_DYNAMIC_SHAPES: DynamicShapes = {
    "ids": (BatchDim("batch", 1, 4), DynamicDim("ids length", 1, 9)),
    "mask": (BatchDim("batch", 1, 4), DynamicDim("mask length", 1, 9)),
}
_RECORDED = ((2, 5), (4, 7))
_SIZES = (*_RECORDED, (1, 7), (3, 4), (4, 9), (2, 1), (1, 1), (1, 9))
"""Batch size and length: the recorded ones, others inside the range, both ends, and the size 1 of each axis."""

_CPU = torch.device("cpu")


class BuiltBackend:
    """What the tests of one class share: a backend built for a tiny encoder.

    Args:
        backend: The backend, not built.
        cache_dir: Folder for its files.
    """

    def __init__(self, backend: Backend, cache_dir: Path) -> None:
        self.module = tiny_encoder()
        self.before = {name: value.clone() for name, value in self.module.state_dict().items()}
        recorded = [tiny_encoder_call(*sizes) for sizes in _RECORDED]
        self.graph_spec, self.data = record_graph(self.module, recorded, dynamic_shapes=_DYNAMIC_SHAPES)
        self.cache_dir = cache_dir
        self.refusal = backend.can_run(self.module, self.graph_spec, _CPU)
        self.backend = backend.build(self.module, self.graph_spec, self.data, _CPU, cache_dir)
        self.state = self.backend.to_dict()
        self.backend.activate()

    def expected(self, sample: Sample) -> Any:
        """Return the original module's answer."""
        with torch.no_grad():
            return self.module(*sample.args, **sample.kwargs)


class BackendConformance:
    """Tests that hold for every backend; see the module's docstring.

    Attributes:
        registry_entry: The backend's entry, when it is not one of aitune's own.
        relative_tolerance: Largest relative L2 error of an output.
    """

    registry_entry: ClassVar[BackendEntry | None] = None
    relative_tolerance: ClassVar[float] = 1e-5

    @classmethod
    def make_backend(cls) -> Backend:
        """Return a new backend, not built."""
        raise NotImplementedError

    @pytest.fixture(scope="class")
    @classmethod
    def built(cls, tmp_path_factory: pytest.TempPathFactory) -> BuiltBackend:
        """Build once for the class."""
        return BuiltBackend(cls.make_backend(), tmp_path_factory.mktemp("build"))

    def check(self, got: Any, expected: Any) -> None:
        """Compare an output with the original module's: types, constants, dtypes, shapes, values."""
        assert type(got) is type(expected)
        if isinstance(expected, torch.Tensor):
            assert got.dtype is expected.dtype
            assert got.shape == expected.shape
            assert not got.requires_grad
            difference = torch.linalg.vector_norm((got - expected).double())
            assert difference <= self.relative_tolerance * torch.linalg.vector_norm(expected.double())
        elif isinstance(expected, dict):
            assert list(got) == list(expected)
            for key, value in expected.items():
                self.check(got[key], value)
        elif isinstance(expected, list | tuple):
            assert len(got) == len(expected)
            for left, right in zip(got, expected, strict=True):
                self.check(left, right)
        else:
            assert got == expected

    # -- what it says ----------------------------------------------------------------------------------------------

    def test_says_that_it_can_run(self, built: BuiltBackend) -> None:
        assert built.refusal is None

    def test_key_is_stable_and_fit_for_a_folder(self) -> None:
        key = self.make_backend().key()
        assert key == self.make_backend().key()
        assert key == Path(key).name
        assert self.make_backend().describe()

    def test_says_what_the_tuned_module_needs_to_know(self, built: BuiltBackend) -> None:
        backend: Any = built.backend
        assert isinstance(backend.runs_original, bool)
        assert isinstance(backend.follows_weights, bool)
        symbols = set(built.graph_spec.symbols)
        assert all(len(group) > 1 and set(group) <= symbols for group in backend.equal_symbols)

    def test_refuses_a_device_that_it_does_not_run_on(self, built: BuiltBackend) -> None:
        assert self.make_backend().can_run(built.module, built.graph_spec, torch.device("meta")) is not None

    # -- life ------------------------------------------------------------------------------------------------------

    def test_refuses_calls_out_of_order(self) -> None:
        backend = self.make_backend()
        for early in (backend.activate, backend.deactivate, backend.deploy, backend.infer, backend.to_dict):
            with pytest.raises(BackendStateError, match="build"):
                early()
        assert not backend.is_active

    def test_refuses_a_second_build(self, built: BuiltBackend) -> None:
        with pytest.raises(BackendStateError, match="cannot build"):
            built.backend.build(built.module, built.graph_spec, built.data, _CPU, built.cache_dir)

    def test_can_be_activated_again(self, built: BuiltBackend) -> None:
        sample = tiny_encoder_call(2, 5)
        built.backend.deactivate()
        with pytest.raises(BackendStateError, match="cannot infer"):
            built.backend.infer(*sample.args, **sample.kwargs)
        built.backend.activate()
        self.check(built.backend.infer(*sample.args, **sample.kwargs), built.expected(sample))

    def test_fresh_copy_is_not_built(self, built: BuiltBackend) -> None:
        fresh = built.backend.fresh()
        assert fresh.key() == built.backend.key()
        assert not fresh.is_active
        with pytest.raises(BackendStateError):
            fresh.to_dict()

    def test_leaves_the_module_as_it_was(self, built: BuiltBackend) -> None:
        now = built.module.state_dict()
        assert list(now) == list(built.before)
        assert all(torch.equal(now[name], value) for name, value in built.before.items())
        assert not built.module.training

    # -- answers ---------------------------------------------------------------------------------------------------

    @pytest.mark.parametrize("sizes", _SIZES, ids=str)
    def test_answers_as_the_module_does(self, built: BuiltBackend, sizes: tuple[int, int]) -> None:
        sample = tiny_encoder_call(*sizes, seed=7)
        self.check(built.backend.infer(*sample.args, **sample.kwargs), built.expected(sample))

    def test_takes_arguments_by_name(self, built: BuiltBackend) -> None:
        (ids, mask), options = tiny_encoder_call(3, 6)
        self.check(built.backend.infer(mask=mask, ids=ids, **options), built.expected(Sample((ids, mask), options)))

    def test_reads_inputs_that_are_not_contiguous(self, built: BuiltBackend) -> None:
        (ids, mask), options = tiny_encoder_call(3, 6, seed=1)
        strided = (ids.t().contiguous().t(), torch.stack([mask, 1 - mask], -1)[..., 0])
        assert not any(tensor.is_contiguous() for tensor in strided)
        self.check(built.backend.infer(*strided, **options), built.expected(Sample((ids, mask), options)))

    def test_answers_in_inference_mode(self, built: BuiltBackend) -> None:
        sample = tiny_encoder_call(2, 6)
        expected = built.expected(sample)
        with torch.inference_mode():
            own = [tensor.clone() for tensor in sample.args]
            self.check(built.backend.infer(*own, **sample.kwargs), expected)

    def test_repeats_itself_and_leaves_inputs_alone(self, built: BuiltBackend) -> None:
        sample = tiny_encoder_call(4, 5, seed=3)
        before = [tensor.clone() for tensor in sample.args]
        answers = [built.backend.infer(*sample.args, **sample.kwargs) for _ in range(3)]
        assert all(torch.equal(tensor, kept) for tensor, kept in zip(sample.args, before, strict=True))
        for answer in answers:
            self.check(answer, built.expected(sample))
            assert torch.equal(answer["hidden"], answers[0]["hidden"])

    def test_outputs_are_not_overwritten_by_the_next_call(self, built: BuiltBackend) -> None:
        sample = tiny_encoder_call(3, 5, seed=4)
        first = built.backend.infer(*sample.args, **sample.kwargs)
        first["hidden"].add_(0)  # it is the caller's to write to
        for seed in range(3):
            other = tiny_encoder_call(3, 5, seed=10 + seed)
            built.backend.infer(*other.args, **other.kwargs)
        self.check(first, built.expected(sample))

    def test_serves_eight_threads_at_once(self, built: BuiltBackend) -> None:
        samples = [tiny_encoder_call(1 + number % 4, 2 + number, seed=number) for number in range(8)]
        expected = [built.expected(sample) for sample in samples]
        answers: list[list[Any]] = [[] for _ in samples]
        failures: list[BaseException] = []
        start = threading.Barrier(len(samples))

        def serve(number: int) -> None:
            try:
                start.wait()
                for _ in range(10):
                    sample = samples[number]
                    answers[number].append(built.backend.infer(*sample.args, **sample.kwargs))
            except BaseException as error:
                failures.append(error)

        threads = [threading.Thread(target=serve, args=(number,)) for number in range(len(samples))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not failures, failures
        for number, answer in enumerate(answers):
            assert len(answer) == 10
            for each in answer:
                self.check(each, expected[number])

    # -- data ------------------------------------------------------------------------------------------------------

    def test_state_is_plain_and_names_files_below_the_cache_folder(self, built: BuiltBackend) -> None:
        assert state_from_json(state_to_json(built.state)) == built.state
        assert built.state["backend"] == built.backend.name
        paths = [value for value in built.state.values() if isinstance(value, ArtifactPath)]
        assert all(built.cache_dir.resolve() in path.path.resolve().parents for path in paths)
        assert bool(paths) == (built.backend.recovery == "artifact")

    def test_comes_back_in_a_fresh_process(self, built: BuiltBackend, tmp_path: Path) -> None:
        samples = [tiny_encoder_call(*sizes, seed=5) for sizes in ((2, 5), (1, 1), (3, 8))]
        calls: Sequence[Sequence[torch.Tensor]] = [sample.args for sample in samples]
        needs_module = built.backend.needs_original_module or built.backend.recovery != "artifact"
        factory = "aitune.testing.tiny_models:tiny_encoder" if needs_module else None
        answers = infer_in_fresh_process(built.state, calls, tmp_path, factory, self.registry_entry)
        for sample, answer in zip(samples, answers, strict=True):
            expected = built.graph_spec.output_spec.tensors_of(built.expected(sample))
            self.check(answer, expected)

    def test_refuses_the_state_of_another_backend(self, built: BuiltBackend) -> None:
        with pytest.raises(ArtifactError):
            type(built.backend).from_dict(built.module, {**built.state, "backend": "Another"})
        with pytest.raises(ArtifactError):
            type(built.backend).from_dict(built.module, {"backend": built.backend.name})
        with pytest.raises(ArtifactError, match="not registered"):
            registry.restore(built.module, {**built.state, "backend": "os:system"})

    def test_refuses_to_come_back_without_its_files(self, built: BuiltBackend, tmp_path: Path) -> None:
        moved = {
            name: ArtifactPath(tmp_path, value.relative_path) if isinstance(value, ArtifactPath) else value
            for name, value in built.state.items()
        }
        if moved == built.state:
            with pytest.raises(ArtifactError):
                type(built.backend).from_dict(None, moved)
        else:
            with pytest.raises(ArtifactError, match="missing"):
                type(built.backend).from_dict(built.module, moved)

    def test_deploys(self, built: BuiltBackend) -> None:
        deployed = type(built.backend).from_dict(built.module, built.state)
        deployed.deploy()
        sample = tiny_encoder_call(2, 3)
        self.check(deployed.infer(*sample.args, **sample.kwargs), built.expected(sample))
        with pytest.raises(BackendStateError, match="cannot deactivate"):
            deployed.deactivate()


__all__ = ["BackendConformance", "BuiltBackend"]
