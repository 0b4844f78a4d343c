"""Modules and calls that exporters and runtimes are known to get wrong, one kind each."""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from serving_fakes import call
from torch.nn.functional import dropout

from aitune.torch.module.sample import Sample


@dataclasses.dataclass
class Kind:
    """One kind of call.

    Args:
        make: Makes the module.
        recorded: Makes the calls that are recorded.
        later: Makes the calls that are compared: values and shapes that were never recorded among them.
        refusal: What a refusal has to name (a regular expression); without it the backend has to answer.
        random: Whether the answer is drawn, so that its values cannot be compared.
    """

    make: Callable[[], torch.nn.Module]
    recorded: Callable[[], Sequence[Sample]]
    later: Callable[[], Sequence[Sample]]
    refusal: str | None = None
    random: bool = False


class Function(torch.nn.Module):
    """A function behind a linear layer, so that there are weights."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)
        self.function = function

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(self.linear, *args, **kwargs)


def of(function: Callable[..., Any], dtype: torch.dtype = torch.float32) -> Callable[[], torch.nn.Module]:
    """A module whose forward has the parameters of a function, without its first."""

    def make() -> torch.nn.Module:
        module = Function(function).eval().to(dtype)
        module.forward = functools.partial(function, module.linear)  # type: ignore[method-assign]
        return module

    return make


def rows(*sizes: int, dtype: torch.dtype = torch.float32) -> list[torch.Tensor]:
    return [torch.randn(size, 4).to(dtype) for size in sizes]


def one_each(*sizes: int, dtype: torch.dtype = torch.float32) -> Callable[[], list[Sample]]:
    return lambda: [call(x) for x in rows(*sizes, dtype=dtype)]


RECORDED, LATER = one_each(2, 4), one_each(1, 2, 3, 4, 9)


class Pair(NamedTuple):
    left: torch.Tensor
    right: torch.Tensor


@dataclasses.dataclass
class Answer:
    value: torch.Tensor
    extra: torch.Tensor | None = None


class Counting(torch.nn.Module):
    count: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.count.add_(1)
        return x + self.count


class Remembering(torch.nn.Module):
    """Keeps its last answer and a count in attributes."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)
        self.count = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.count += 1
        self.last = self.linear(x)
        return self.last * self.count


def doubled_when_named(forward: Callable[..., Any]) -> Callable[..., Any]:
    """Looks at how its arguments are given, as decorators of libraries do."""

    @functools.wraps(forward)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return forward(*args, **kwargs) * (2 if "mask" in kwargs else 1)

    return wrapper


class Decorated(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)

    @doubled_when_named
    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return self.linear(x) * mask


class Tied(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = torch.nn.Embedding(11, 4)
        self.head = torch.nn.Linear(4, 11, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.head(self.embed(ids))


class Reused(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.part = torch.nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.part(x) + self.part(x[:, None].expand(-1, 3, -1)).sum(1) + self.part(x.mean(0, keepdim=True))


def add_in_place(linear: Any, x: torch.Tensor) -> torch.Tensor:
    x.add_(1)
    return linear(x)


def by_values(linear: Any, x: torch.Tensor) -> torch.Tensor:
    return linear(x) if x.sum() > 0 else x * 3


def by_size(linear: Any, x: torch.Tensor) -> torch.Tensor:
    return linear(x) if x.shape[0] > 2 else x * 3


def into_list(linear: Any, x: torch.Tensor, kept: list[torch.Tensor]) -> torch.Tensor:
    kept.append(linear(kept[-1]) + x)
    return kept[-1] * 2


def filled(linear: Any, x: torch.Tensor, cache: Any) -> torch.Tensor:
    keys, _ = cache.update(linear(x)[:, None, None], x[:, None, None], 0)
    return keys.sum(2)


def with_cache(*sizes: int) -> Callable[[], list[Sample]]:
    def make() -> list[Sample]:
        from transformers import DynamicCache

        calls = []
        for x in rows(*sizes):
            cache = DynamicCache()
            cache.update(torch.ones(x.shape[0], 1, 2, 4), torch.ones(x.shape[0], 1, 2, 4), 0)
            calls.append(call(x, cache))
        return calls

    return make


def model_output(linear: Any, x: torch.Tensor) -> Any:
    from transformers.modeling_outputs import BaseModelOutput

    return BaseModelOutput(last_hidden_state=linear(x), hidden_states=(x * 2, x + 1))


def two(same: bool, *sizes: int) -> Callable[[], list[Sample]]:
    return lambda: [call(x, x if same else torch.randn_like(x)) for x in rows(*sizes)]


def transposed(*sizes: int) -> list[Sample]:
    return [call(torch.randn(4, size).t()) for size in sizes]


def images(memory_format: torch.memory_format, *sizes: int) -> list[Sample]:
    return [call(torch.randn(size, 3, 6, 6).to(memory_format=memory_format)) for size in sizes]


def number_calls(*numbers: int) -> Callable[[], list[Sample]]:
    return lambda: [call(x, number) for number in numbers for x in rows(2, 4)]


def dicts(*orders: str) -> Callable[[], list[Sample]]:
    return lambda: [call({key: x * (1 + ord(key)) for key in order}) for order in orders for x in rows(2, 4)]


def counted(linear: Any, items: Any) -> torch.Tensor:
    return sum((linear(item) for item in items), torch.zeros(1, 4))


KINDS: dict[str, Kind] = {
    "one object for two arguments": Kind(of(lambda f, x, y: f(x) - 2 * y), two(True, 2, 4), two(False, 1, 3, 4)),
    "views of one memory": Kind(
        of(lambda f, x, y: f(x) + y.sum(1, keepdim=True)),
        lambda: [call(x, x[:, 1:]) for x in rows(2, 4)],
        lambda: [call(x, torch.randn(x.shape[0], 3)) for x in rows(1, 3)],
    ),
    "expanded": Kind(
        of(lambda f, x: f(x) * x), RECORDED, lambda: [call(torch.randn(1, 4).expand(size, 4)) for size in (1, 2, 3, 4)]
    ),
    "not contiguous": Kind(
        of(lambda f, x: f(x) * x), RECORDED, lambda: [*transposed(1, 3, 4), call(torch.randn(3, 8)[:, ::2])]
    ),
    "recorded not contiguous": Kind(
        of(lambda f, x: f(x) * x), lambda: transposed(2, 4), lambda: [*transposed(3), *LATER()]
    ),
    "channels_last": Kind(
        lambda: torch.nn.Conv2d(3, 2, 3).eval(),
        lambda: images(torch.channels_last, 2, 4),
        lambda: [*images(torch.channels_last, 1, 3), *images(torch.contiguous_format, 1, 4)],
    ),
    "lazily negated": Kind(
        of(lambda f, x: f(x) * x), RECORDED, lambda: [call(torch.complex(x, -x).conj().imag) for x in rows(1, 3)]
    ),
    "zero dimensions": Kind(
        of(lambda f, x, scale: f(x) * scale),
        lambda: [call(x, torch.tensor(2.0)) for x in rows(2, 4)],
        lambda: [call(x, torch.tensor(-3.5)) for x in rows(1, 3, 4)],
    ),
    "empty batch": Kind(of(lambda f, x: f(x)), RECORDED, one_each(0, 2)),
    "int64": Kind(
        of(lambda f, x, ids: f(x) + ids * 2),
        lambda: [call(x, torch.arange(4)) for x in rows(2, 4)],
        lambda: [call(x, torch.tensor([2**40, -1, 0, 2**31])) for x in rows(1, 4)],
    ),
    "bool": Kind(
        of(lambda f, x, mask: torch.where(mask, f(x), x)),
        lambda: [call(x, x > 0) for x in rows(2, 4)],
        lambda: [call(x, x < 0) for x in rows(1, 4)],
    ),
    "float64": Kind(
        of(lambda f, x: f(x) + 1e-9, torch.float64),
        one_each(2, 4, dtype=torch.float64),
        one_each(1, 3, dtype=torch.float64),
        "float64|value differs",
    ),
    "bf16": Kind(
        of(lambda f, x: f(x), torch.bfloat16),
        one_each(2, 4, dtype=torch.bfloat16),
        one_each(1, 3, dtype=torch.bfloat16),
        "bfloat16",
    ),
    "float16": Kind(
        of(lambda f, x: f(x), torch.float16),
        one_each(2, 4, dtype=torch.float16),
        one_each(1, 3, dtype=torch.float16),
        "float16",
    ),
    "complex": Kind(
        of(lambda f, z: f(z.real) * z.abs()),
        lambda: [call(torch.complex(x, x)) for x in rows(2, 4)],
        lambda: [call(torch.complex(x, x).conj()) for x in rows(1, 3)],
        "complex",
    ),
    "sparse": Kind(
        of(lambda f, x: f(x.to_dense())),
        lambda: [call(x.to_sparse()) for x in rows(2, 4)],
        lambda: [call(x.to_sparse()) for x in rows(3)],
        "sparse",
    ),
    "quantised": Kind(
        of(lambda f, x: f(x.dequantize())),
        lambda: [call(torch.quantize_per_tensor(x, 0.1, 0, torch.qint8)) for x in rows(2, 4)],
        lambda: [call(torch.quantize_per_tensor(x, 0.1, 0, torch.qint8)) for x in rows(3)],
        "quantised",
    ),
    "not a number": Kind(
        of(lambda f, x: f(x.nan_to_num(0.0)) + x),
        RECORDED,
        lambda: [call(x.masked_fill(x > 0.5, value)) for value in (float("nan"), float("inf")) for x in rows(2, 3)],
    ),
    "order of a dict": Kind(
        of(lambda f, d: f(torch.cat([*d.values()], 1)[:, :4]) + d["a"]), dicts("ab"), dicts("ab", "ba", "abc")
    ),
    "tied weights": Kind(
        lambda: Tied().eval(),
        lambda: [call(torch.randint(11, (size, 5))) for size in (2, 4)],
        lambda: [call(torch.randint(11, (size, length))) for size in (1, 3) for length in (5, 6)],
    ),
    "a part used several times": Kind(lambda: Reused().eval(), RECORDED, LATER),
    "an int": Kind(of(lambda f, x, n: f(x) * n), number_calls(2, 3), number_calls(3, 2, 5, 0)),
    "an int from the sizes": Kind(of(lambda f, x: (f(x), x.shape[0])), RECORDED, LATER, "output|number|size"),
    "changes its input": Kind(of(add_in_place), RECORDED, LATER, "changes (its|input)|inputs"),
    "changes a buffer": Kind(lambda: Counting().eval(), RECORDED, LATER, "buffer|count"),
    "keeps values in attributes": Kind(lambda: Remembering().eval(), RECORDED, LATER, "attribute (count|last)"),
    "fills a cache": Kind(of(filled), with_cache(2, 4), with_cache(1, 3)),
    "fills a list": Kind(
        of(into_list), lambda: [call(x, [x * 2]) for x in rows(2, 4)], lambda: [call(x, [x + 1]) for x in rows(1, 3)]
    ),
    "branches on values": Kind(
        of(by_values),
        lambda: [call(x.abs()) for x in rows(2, 4)],
        lambda: [call(sign * x.abs()) for x in rows(2, 4) for sign in (1, -1)],
        "branch|data|values|differ",
    ),
    "branches on sizes": Kind(of(by_size), RECORDED, LATER, "branch|size|specializ|range|differ"),
    "lengths equal by chance": Kind(
        of(lambda f, x, y: f(x).sum() + y),
        lambda: [call(torch.randn(2, n, 4), torch.randn(2, n)) for n in (3, 5)],
        lambda: [call(torch.randn(2, n, 4), torch.randn(2, m)) for n, m in ((3, 4), (5, 3), (4, 4))],
    ),
    "a decorated forward": Kind(
        lambda: Decorated().eval(),
        lambda: [call(x, mask=x) for x in rows(2, 4)],
        lambda: [call(x, mask=x + 1) for x in rows(1, 3)],
    ),
    "a named tuple": Kind(
        of(lambda f, p: Pair(f(p.left), p.right * 2)),
        lambda: [call(Pair(x, x + 1)) for x in rows(2, 4)],
        lambda: [call(Pair(x, x - 1)) for x in rows(1, 3, 9)],
    ),
    "a dataclass": Kind(of(lambda f, x: Answer(f(x))), RECORDED, LATER),
    "a ModelOutput": Kind(of(model_output), RECORDED, LATER),
    "its input as an output": Kind(of(lambda f, x: {"y": f(x), "x": x, "none": None}), RECORDED, LATER),
    "random": Kind(
        of(lambda f, x: dropout(f(x), 0.5, training=True)), RECORDED, LATER, "random|drawn|draws|seed", random=True
    ),
    "no tensor": Kind(
        of(lambda f, n: f(torch.ones(1, 4) * n)), lambda: [call(2)], lambda: [call(2), call(3)], "no tensor"
    ),
    "a generator": Kind(
        of(counted),
        lambda: [call(iter(rows(2, 2)))],
        lambda: [call(iter(rows(2, 2, 2))), call(rows(2, 2))],
        "list_iterator|generator",
    ),
}
