from collections.abc import Callable
from pathlib import Path

import torch

from aitune.torch.dynamic_shapes import BatchDim, DynamicDim, DynamicShapes
from aitune.torch.module.forward_signature import ForwardSignature
from aitune.torch.module.recording_module import RecordingModule, recorded_batch_size


def evidence(
    folder: Path,
    forward: Callable[..., torch.Tensor],
    calls: dict[int, list[torch.Tensor]],
    shapes: DynamicShapes | None = None,
) -> tuple[str, ...]:
    module = RecordingModule(forward, ForwardSignature.from_callable(forward), folder)
    for batch, tensors in calls.items():
        with recorded_batch_size(batch):
            module(*tensors)
    return module.graphs(shapes)[0].spec.axis_evidence


def test_every_symbol_says_where_it_is_and_what_made_it(tmp_path: Path) -> None:
    calls = {batch: [torch.zeros(batch, 3 + batch), torch.zeros(2 * batch)] for batch in (1, 3, 4)}
    assert evidence(tmp_path, lambda x, mask: x, calls) == (
        "batch0 = 1..4: axis 0 of x, axis 0 of mask (times 2); "
        "grows with the batch size: 1 at batch size 1, 3 at batch size 3, 4 at batch size 4",
        "dim0 = 4..7: axis 1 of x; varies: 4 at batch size 1, 6 at batch size 3, 7 at batch size 4",
    )


def test_symbols_that_were_always_equal_are_named(tmp_path: Path) -> None:
    calls = {batch: [torch.zeros(2, length), torch.zeros(2, length)] for batch, length in ((1, 5), (2, 9))}
    said = evidence(tmp_path, lambda x, mask: x, calls)
    assert said[-1].startswith("dim0 and dim1 were equal in every call: they are one only for a backend")


def test_what_the_user_declared_is_said_to_be_declared(tmp_path: Path) -> None:
    shapes: DynamicShapes = {"x": (BatchDim("b", 1, 8), DynamicDim("n", 1, 9))}
    said = evidence(tmp_path, lambda x: x, {2: [torch.zeros(2, 5)]}, shapes)
    assert said[0] == "b = 1..8: axis 0 of x; declared in dynamic_shapes, seen 2 at batch size 2"
    assert said[1] == "n = 1..9: axis 1 of x; declared in dynamic_shapes, seen 5 at batch size 2"


def test_fixed_axes_need_no_words_and_many_sizes_are_cut_short(tmp_path: Path) -> None:
    assert evidence(tmp_path, lambda x: x, {1: [torch.zeros(4)]}) == ()
    (line,) = evidence(tmp_path / "many", lambda x: x, {n: [torch.zeros(2, 3 + n % 7)] for n in range(1, 20)})
    assert line.endswith("7 at batch size 4 and 3 more sizes")
