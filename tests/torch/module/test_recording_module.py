import enum
import functools
import re
import resource
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils import _pytree as pytree

from aitune.exceptions import AITuneUserInputError
from aitune.torch.dynamic_shapes import BatchDim, DynamicDim
from aitune.torch.module.forward_signature import ForwardSignature
from aitune.torch.module.recording_module import RecordingModule, recorded_batch_size


def recording(forward: Callable[..., Any], folder: Path, **settings: Any) -> RecordingModule:
    return RecordingModule(forward, ForwardSignature.from_callable(forward), folder, **settings)


def test_answers_are_the_originals_and_calls_are_kept_once_a_shape(tmp_path: Path) -> None:
    module = recording(lambda x, y=None: x * 2, tmp_path)
    for size in (1, 2, 2, 3):
        x = torch.randn(size, 4)
        assert torch.equal(module(x), x * 2)
    (graph,) = module.graphs()
    assert graph.num_calls == module.num_calls == 4
    assert [sample.args[0].shape[0] for sample in graph.samples] == [1, 2, 3]


def test_the_sample_is_the_input_as_it_was_before_the_call(tmp_path: Path) -> None:
    def forward(x: torch.Tensor, cache: dict[str, torch.Tensor]) -> torch.Tensor:
        cache["k"] += 1
        return x.add_(1)

    module = recording(forward, tmp_path)
    x, cache = torch.zeros(2), {"k": torch.zeros(2)}
    module(x, cache)
    assert x.all()
    ((args, _),) = module.graphs()[0].samples
    assert not args[0].any()
    assert not args[1]["k"].any()


def test_batch_and_dynamic_axes_come_from_the_samples(tmp_path: Path) -> None:
    module = recording(lambda x: x[:, :1], tmp_path)
    for batch, length in ((1, 5), (2, 7), (2, 9)):
        with recorded_batch_size(batch):
            module(torch.zeros(batch, length, 3))
    spec = module.graphs()[0].spec
    assert spec.input_spec.tensor_specs[0].shape == ("batch0", "dim0", 3)
    assert spec.output_spec.tensor_specs[0].shape == ("batch0", 1, 3)
    assert (spec.symbols["dim0"].min, spec.symbols["dim0"].max) == (5, 9)


def test_the_batch_size_holds_inside_the_block_of_this_thread_only(tmp_path: Path) -> None:
    module = recording(lambda x: x, tmp_path)
    with recorded_batch_size(1):
        module(torch.zeros(1, 3))
        thread = threading.Thread(target=module, args=(torch.zeros(2, 3),))
        thread.start()
        thread.join()
    assert not module.graphs()[0].spec.batching


def test_declared_axes_count_for_every_graph_that_has_the_path(tmp_path: Path) -> None:
    module = recording(lambda x, mask=None: x, tmp_path)
    module(torch.zeros(1, 3))
    module(torch.zeros(1, 3), torch.zeros(1))
    declared = {"x": (BatchDim("b", 1, 8), 3), "mask": (DynamicDim("n", 1, 4),)}
    shapes = [[spec.shape for spec in graph.spec.input_spec.tensor_specs] for graph in module.graphs(declared)]
    assert shapes == [[("b", 3)], [("b", 3), ("n",)]]
    with pytest.raises(AITuneUserInputError, match=r"no recorded call has a tensor at 'y'.*\('x',\)"):
        module.graphs({"y": (3,)})


def test_flags_make_graphs_in_strict_mode_only(tmp_path: Path) -> None:
    calls = [(torch.zeros(1), True), (torch.zeros(1), False), (torch.zeros(1, 1), False)]
    for strict, count in ((True, 3), (False, 2)):
        module = recording(lambda x, flag: x, tmp_path, strict=strict)
        for args in calls:
            module(*args)
        assert len(module.graphs()) == count


def test_beyond_the_most_graphs_the_argument_at_fault_is_named(tmp_path: Path) -> None:
    module = recording(lambda x, step, mode="fast": x + step, tmp_path, max_graphs=3)
    for step in range(6):
        assert module(torch.zeros(1), step).item() == step
    assert len(module.graphs()) == 3
    assert module.problems == [
        "more than 3 kinds of calls: further ones run on the original; argument step alone had 4 values"
    ]


def numbers() -> Iterator[int]:
    yield from range(3)


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (numbers(), "argument x is a builtins.generator"),
        ({1, 2}, "argument x is a builtins.set"),
        (torch.zeros(2, 2).to_sparse(), r"argument x is a tensor that is sparse \(torch.sparse_coo\)"),
        (torch.quantize_per_tensor(torch.zeros(2), 0.1, 0, torch.quint8), r"quantised \(torch.quint8\)"),
        (torch.zeros(2).as_subclass(type("Own", (torch.Tensor,), {})), "of the class .*Own"),
        (torch._nested_tensor_from_tensor_list([torch.zeros(1), torch.zeros(2)]), "is nested"),
        (torch.zeros(2, device="meta"), "without values"),
    ],
    ids=["generator", "set", "sparse", "quantised", "subclass", "nested", "meta"],
)
def test_a_call_that_cannot_be_captured_runs_untouched_and_is_named(value: Any, said: str, tmp_path: Path) -> None:
    module = recording(lambda x: [*x] if not isinstance(x, torch.Tensor) else x, tmp_path)
    answer = module(value)
    assert answer is value or answer in ([0, 1, 2], [1, 2])
    assert module.graphs() == []
    (problem,) = module.problems
    assert re.search(said, problem), problem


def test_calls_inside_transforms_run_untouched(tmp_path: Path) -> None:
    module = recording(lambda x: x * 2, tmp_path)
    assert torch.func.vmap(module)(torch.ones(3, 2)).tolist() == [[2.0, 2.0]] * 3
    assert torch.func.grad(lambda x: module(x).sum())(torch.ones(2)).tolist() == [2.0, 2.0]
    assert module.graphs() == []
    (problem,) = module.problems
    assert "inside torch.func" in problem


class Unwritable(enum.Enum):
    ONE = 1

    def __repr__(self) -> str:
        raise RuntimeError("theirs")


def test_whatever_goes_wrong_in_keeping_a_call_does_not_stop_it(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for value, folder, said in [
        (torch.zeros(2), tmp_path / "file", "a call cannot be kept, .*: .*Error: .*file"),
        (Unwritable.ONE, tmp_path, "a call cannot be kept, .*: RuntimeError: theirs"),
    ]:
        module = recording(lambda x: x, folder)
        assert module(value) is value
        assert module.graphs() == []
        (problem,) = module.problems
        assert re.search(said, problem), problem


def test_whatever_goes_wrong_in_describing_an_output_is_the_graphs_problem(tmp_path: Path) -> None:
    module = recording(lambda x: [x, Unwritable.ONE], tmp_path)
    for _ in range(2):
        assert module(torch.zeros(1))[1] is Unwritable.ONE
    (graph,) = module.graphs()
    assert "what a call gave cannot be described: RuntimeError: theirs" in (graph.problem or "")


def test_a_wrong_call_raises_the_originals_error_and_is_noted(tmp_path: Path) -> None:
    module = recording(lambda x: x, tmp_path)
    with pytest.raises(TypeError, match="unexpected keyword argument 'y'"):
        module(torch.zeros(1), y=1)
    assert module.problems == ["forward has no parameter 'y'"]


def test_an_output_that_cannot_be_described_is_the_graphs_problem(tmp_path: Path) -> None:
    module = recording(lambda x: {1, 2}, tmp_path)
    module(torch.zeros(1))
    assert "output output is a builtins.set" in (module.graphs()[0].problem or "")


def test_what_a_forward_puts_into_a_container_is_part_of_what_it_gives(tmp_path: Path) -> None:
    def forward(x: torch.Tensor, cache: list[torch.Tensor]) -> torch.Tensor:
        cache[0] = torch.cat([cache[0], x])
        return cache[0].sum()

    module = recording(forward, tmp_path)
    cache = [torch.zeros(2)]
    module(torch.ones(1), cache)
    assert cache[0].shape == (3,)
    (graph,) = module.graphs()
    assert graph.problem is None
    assert graph.spec.changed_arguments == ("cache",)
    assert "arguments['cache'][0]: float32[3]" in graph.spec.describe()
    (sample,) = graph.samples
    assert sample.args[1][0].shape == (2,)


class Drawer:
    """A container that a user registered; nothing is known of how to fill it."""

    def __init__(self, held: torch.Tensor) -> None:
        self.held = held


pytree.register_pytree_node(Drawer, lambda drawer: ([drawer.held], None), lambda values, _: Drawer(*values))


def test_a_container_that_cannot_be_filled_is_the_graphs_problem(tmp_path: Path) -> None:
    def forward(x: torch.Tensor, cache: Drawer) -> torch.Tensor:
        cache.held = cache.held + x
        return cache.held.sum()

    module = recording(forward, tmp_path)
    module(torch.ones(1), Drawer(torch.zeros(1)))
    (graph,) = module.graphs()
    assert "puts other values into argument cache" in (graph.problem or "")
    assert "Drawer cannot be given what a backend computes" in (graph.problem or "")


def test_a_container_that_is_filled_in_some_calls_only_is_the_graphs_problem(tmp_path: Path) -> None:
    def forward(x: torch.Tensor, cache: list[torch.Tensor]) -> torch.Tensor:
        if x.sum() > 0:
            cache.append(x)
        return x * 2

    module = recording(forward, tmp_path)
    module(torch.ones(1), [])
    module(-torch.ones(1), [])
    (graph,) = module.graphs()
    assert "the output changes its kind" in (graph.problem or "")


def test_a_call_that_raises_leaves_no_graph(tmp_path: Path) -> None:
    def forward(x: torch.Tensor) -> torch.Tensor:
        raise ValueError("theirs")

    module = recording(forward, tmp_path)
    with pytest.raises(ValueError, match="theirs"):
        module(torch.zeros(1))
    assert module.graphs() == []


def test_a_decorated_forward_is_repeated_in_the_style_of_its_first_call(tmp_path: Path) -> None:
    class Module:
        def forward(self, x: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
            return x

    def looks_at_keywords(function: Any) -> Any:
        @functools.wraps(function)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            assert "mask" in kwargs
            return function(*args, **kwargs)

        return wrapper

    module = recording(looks_at_keywords(Module().forward), tmp_path)
    module(torch.zeros(1), mask=torch.ones(1))
    ((args, kwargs),) = module.graphs()[0].samples
    assert (len(args), list(kwargs)) == (1, ["mask"])
    made = module.graphs()[0].spec.make_call([torch.zeros(1), torch.zeros(1)])
    assert list(made.kwargs) == ["mask"]


def test_several_threads_may_record(tmp_path: Path) -> None:
    module = recording(lambda x, flag: x + flag, tmp_path)
    wrong: list[int] = []

    def run(flag: int) -> None:
        for size in range(1, 40):
            if not torch.equal(module(torch.zeros(size % 5 + 1), flag), torch.full((size % 5 + 1,), flag)):
                wrong.append(flag)

    threads = [threading.Thread(target=run, args=(flag,)) for flag in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    graphs = module.graphs()
    assert sorted(graph.num_calls for graph in graphs) == [39] * 4
    assert [len(graph.samples) for graph in graphs] == [5] * 4


def test_discarding_removes_the_folder(tmp_path: Path) -> None:
    module = recording(lambda x: x, tmp_path / "own")
    module(torch.zeros(3))
    assert list((tmp_path / "own").rglob("*.safetensors"))
    module.discard()
    assert not (tmp_path / "own").exists()


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="reads the memory of the process from /proc")
def test_ten_thousand_calls_with_ten_megabytes_keep_few_samples_and_little_memory(tmp_path: Path) -> None:
    module = recording(lambda x: x.sum(), tmp_path, max_num_samples_stored=8)
    largest = torch.zeros(2_500_000)

    def run(count: int) -> None:
        for number in range(count):
            # Ten thousand shapes: what is remembered of each call has to be small as well.
            module(largest[: largest.numel() - number])

    run(20)
    before = resident_bytes()
    run(10_000)
    assert resident_bytes() - before < 50e6
    (graph,) = module.graphs()
    assert len(graph.samples) == 8
    files = list(tmp_path.rglob("*.safetensors"))
    assert len(files) == 8
    assert sum(file.stat().st_size for file in files) < 8 * 10.1e6
