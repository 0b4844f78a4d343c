"""Calls that are wrong behave as they do without tuning."""

import functools
import random
from typing import Any

import pytest
import torch
from serving_fakes import Net, call, served, tuned

CALLS = [call(torch.randn(b, 3)) for b in (1, 4)]
MASKED = [call(torch.randn(b, 3), torch.ones(b)) for b in (1, 4)]
X = torch.randn(2, 3)


def outcome(run: Any, args: Any, kwargs: Any) -> Any:
    try:
        answer = run(*args, **kwargs)
    except Exception as error:
        return type(error), str(error)
    return answer.dtype, tuple(answer.shape), answer.nan_to_num(7.0).tolist()


WRONG_VALUES = [
    None, 3, 2.5, "text", [], {}, (), float("nan"), torch.zeros(3), torch.zeros(2, 4), torch.zeros(2, 3, 1),
    torch.zeros(0, 3), torch.zeros(2, 3, dtype=torch.int64), torch.full((2, 3), float("nan")), torch.zeros(()),
    torch.zeros(2, 3, dtype=torch.float64), torch.zeros(9, 3), torch.zeros(2), torch.ones(2, 3, requires_grad=True),
]  # fmt: skip


def malformed(generator: random.Random) -> tuple[list[Any], dict[str, Any]]:
    """A valid call with one thing wrong."""
    args: list[Any] = [torch.rand(2, 3)]
    kwargs: dict[str, Any] = {}
    if generator.random() < 0.5:
        (args.append(torch.ones(2)) if generator.random() < 0.5 else kwargs.update(mask=torch.ones(2)))
    if generator.random() < 0.3:
        kwargs["scale"] = 2.0
    kind = generator.randrange(6)
    if kind == 0 and args:
        args.pop(generator.randrange(len(args)))
    elif kind == 1:
        kwargs[generator.choice(["x", "mask", "scale", "unknown", "self", "_aitune_self"])] = generator.choice(
            WRONG_VALUES
        )
    elif kind == 2:
        args.append(generator.choice(WRONG_VALUES))
    elif kind == 3 and args:
        args[generator.randrange(len(args))] = generator.choice(WRONG_VALUES)
    elif kind == 4 and kwargs:
        kwargs[generator.choice(list(kwargs))] = generator.choice(WRONG_VALUES)
    elif kind == 5 and kwargs:
        kwargs["scal"] = kwargs.pop(generator.choice(list(kwargs)))
    return args, kwargs


class Positional(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(3, 2)

    def forward(
        self, x: torch.Tensor, /, mask: Any = None, *rest: Any, scale: float = 1.0, **more: Any
    ) -> torch.Tensor:
        y = self.linear(x) * scale + len(rest) + len(more)
        return y if mask is None else y * mask[:, None]


@pytest.mark.parametrize("module_class", [Net, Positional])
@pytest.mark.parametrize("indirect", [False, True])
def test_a_thousand_wrong_calls_behave_as_the_original_does(
    module_class: type[torch.nn.Module], indirect: bool, caplog: pytest.LogCaptureFixture
) -> None:
    net = module_class().eval()
    if indirect:
        net.forward = functools.partial(net.forward)  # type: ignore[method-assign]
    generator = random.Random(5)
    calls = [malformed(generator) for _ in range(1000)]
    with torch.no_grad():
        expected = [outcome(net, args, kwargs) for args, kwargs in calls]
        wrapped = tuned(net, *CALLS, *MASKED, call(X, torch.ones(2), scale=2.0))
        assert [outcome(wrapped, args, kwargs) for args, kwargs in calls] == expected
    errors = sum(isinstance(found[0], type) for found in expected)
    assert 300 < errors < 950
    assert 0 < served(wrapped) < 700
    assert wrapped.stats().fallbacks["outside the tuned graphs"] > 300
