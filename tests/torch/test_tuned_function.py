import asyncio
import functools
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from tuning_models import SleepyNet, hurry, samples

import aitune.torch as ait
from aitune.exceptions import AITuneUserInputError
from aitune.torch.module.wrapper_module import ModuleState


def tune(func: Any, **kwargs: Any) -> Any:
    return ait.tune(func, samples(), batch_sizes=[1, 8], strategy=hurry(), **kwargs)


@pytest.fixture
def model() -> Any:
    return ait.Module(SleepyNet().eval(), "net")


@pytest.fixture
def tuned(model: Any) -> Any:
    tune(model)
    return model


class Pipeline(torch.nn.Module):
    def __init__(self, part: torch.nn.Module) -> None:
        super().__init__()
        self.part = part

    def forward(self, x: torch.Tensor) -> Any:
        return self.part(x)


class TestWhereEveryWrappedModuleIsTuned:
    @pytest.mark.parametrize("as_method", [False, True])
    def test_an_unwrapped_function_is_named(self, tuned: Any, as_method: bool) -> None:
        other = torch.nn.Linear(4, 4).eval()
        report = tune(other.forward if as_method else other)
        what = "func is a method of" if as_method else "func is"
        assert any(f"{what} a Linear that is not wrapped: wrap it" in warning for warning in report.warnings)
        assert not any("every wrapped module is tuned already" in warning for warning in report.warnings)
        assert tuned.state is ModuleState.TUNED

    def test_a_function_that_calls_no_wrapped_module(self, tuned: Any) -> None:
        report = tune(lambda x: x + 1)
        assert any("func calls no wrapped module" in w and "wrap the module" in w for w in report.warnings)

    def test_a_function_that_raises(self, tuned: Any) -> None:
        with pytest.raises(AITuneUserInputError, match="func raised ZeroDivisionError"):
            tune(lambda x: 1 / 0)
        assert tuned.state is ModuleState.TUNED

    @pytest.mark.parametrize("given", [lambda m: m, lambda m: lambda x: m(x * 1), Pipeline])
    def test_a_function_that_calls_one_hears_of_retune(self, tuned: Any, given: Callable[[Any], Any]) -> None:
        report = tune(given(tuned))
        assert any("every wrapped module is tuned already" in warning for warning in report.warnings)

    def test_the_state_of_the_modules_is_not_advanced(self) -> None:
        class Counting(SleepyNet):
            def __init__(self) -> None:
                super().__init__()
                self.register_buffer("count", torch.zeros(()))

            def forward(self, x: torch.Tensor, scale: torch.Tensor | None = None) -> dict[str, torch.Tensor]:
                self.count += 1
                return super().forward(x, scale)

        net = Counting().eval()
        model = ait.Module(net, "counting")
        tune(model)
        before = net.count.clone()
        tune(model)
        assert torch.equal(net.count, before)


class TestWhatIsAtFault:
    def test_a_part_of_func_that_is_wrapped_gets_no_advice_to_wrap_func(self, model: Any) -> None:
        other = ait.Module(SleepyNet().eval(), "other")
        report = tune(Pipeline(model).eval())
        assert report.module("other").reason == "the function never called it"
        assert other.state is ModuleState.INIT

    def test_a_module_that_was_not_reached_is_not_blamed(self, model: Any) -> None:
        elsewhere = ait.Module(torch.nn.Linear(4, 4, device="meta"), "elsewhere")

        def func(x: torch.Tensor) -> Any:
            model(x)
            raise NotImplementedError("no such operator")

        with pytest.raises(AITuneUserInputError, match="func raised NotImplementedError: no such operator"):
            tune(func)
        assert elsewhere.state is ModuleState.INIT

    def test_a_module_without_values_that_was_called_is_named(self) -> None:
        empty = ait.Module(torch.nn.Linear(4, 4, device="meta").eval(), "empty")
        with pytest.raises(AITuneUserInputError, match=r"empty: 'weight' is on the meta device"):
            tune(empty)


async def coroutine(x: torch.Tensor) -> None: ...


async def asynchronous_generator(x: torch.Tensor) -> AsyncIterator[int]:
    yield 1


def generator(x: torch.Tensor) -> Iterator[int]:
    yield 1


class AsyncCall:
    async def __call__(self, x: torch.Tensor) -> None: ...


class TestFunctionsThatRunNothing:
    @pytest.mark.parametrize(
        ("func", "said"),
        [
            (coroutine, r"coroutine is a coroutine function .*asyncio\.run"),
            (functools.partial(coroutine), r"coroutine is a coroutine function .*asyncio\.run"),
            (AsyncCall(), r"AsyncCall is a coroutine function .*asyncio\.run"),
            (lambda x: coroutine(x * 1), r"returned a coroutine.*asyncio\.run"),
            (generator, r"generator is a generator function .*list\("),
            (asynchronous_generator, "generator function"),
        ],
    )
    @pytest.mark.filterwarnings("error")
    def test_are_refused_with_advice(self, model: Any, func: Any, said: str) -> None:
        with pytest.raises(AITuneUserInputError, match=said):
            tune(func)
        assert model.state is ModuleState.INIT

    def test_what_runs_them_is_tuned(self, model: Any) -> None:
        async def func(x: torch.Tensor) -> None:
            await asyncio.sleep(0)
            model(x)

        report = tune(lambda x: asyncio.run(func(x)))
        assert report.module("net").status == "tuned"
        assert model.graph_specs[0].batching


def in_a_thread(call: Callable[[], Any]) -> None:
    thread = threading.Thread(target=call)
    thread.start()
    thread.join()


def in_a_pool(call: Callable[[], Any]) -> None:
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda _: call(), range(3)))


class TestThreads:
    @pytest.mark.parametrize("run", [in_a_thread, in_a_pool])
    def test_calls_in_threads_count_for_the_batch_size(
        self, model: Any, run: Callable[[Callable[[], Any]], None]
    ) -> None:
        report = tune(lambda x: run(lambda: model(x)))
        assert report.module("net").status == "tuned"
        (spec,) = model.graph_specs
        assert spec.batching
        assert spec.get_max_batch_size() == 8
