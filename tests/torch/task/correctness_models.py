"""Small modules, each with one property that a comparison has to cope with, and the references of a module."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import nn

from aitune.testing.graphs import call, record_graph
from aitune.torch.module.sample import Sample
from aitune.torch.task.reference import References, make_references


def references_of(module: nn.Module, calls: Sequence[Sample], batch_sizes=None, dynamic_shapes=None, **kwargs):
    graph_spec, data = record_graph(module, calls, batch_sizes, dynamic_shapes)
    return make_references(module, graph_spec, data, **kwargs)


def seeded(make):
    torch.manual_seed(0)
    return make().eval()


@dataclass
class Scores:
    pooled: torch.Tensor
    best: torch.Tensor


class Tagger(nn.Module):
    """Attention over masked token ids; returns a dict, a list, integers and bools."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(40, 8)
        self.mix = nn.Linear(8, 8)
        self.head = nn.Linear(8, 5)

    def forward(self, ids, mask):
        embedded = self.embedding(ids)
        scores = embedded @ self.mix(embedded).transpose(1, 2)
        scores = scores.masked_fill(mask[:, None, :] == 0, -1e9)
        hidden = torch.tanh(scores.softmax(-1) @ embedded)
        logits = self.head(hidden)
        pooled = (hidden * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)
        return {"logits": logits, "tags": logits.argmax(-1), "parts": [pooled, pooled > 0]}


def tagger_call(batch: int, length: int, seed: int = 0) -> Sample:
    generator = torch.Generator().manual_seed(seed + 100 * batch + length)
    ids = torch.randint(1, 40, (batch, length), generator=generator)
    mask = torch.ones(batch, length, dtype=torch.int64)
    if batch > 1:
        mask[1, length // 2 :] = 0
    return call(ids, mask)


def tagger_calls() -> list[Sample]:
    return [tagger_call(batch, length) for batch in (1, 4) for length in (4, 9)]


def tagger_references(**kwargs) -> tuple[nn.Module, References]:
    module = seeded(Tagger)
    return module, references_of(module, tagger_calls(), [1, 1, 4, 4], **kwargs)


class Square(nn.Module):
    """Mixes two axes of one size, so that transposing them goes unnoticed by shapes."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(6, 6)

    def forward(self, x):
        return self.linear(x)


def square_calls() -> list[Sample]:
    generator = torch.Generator().manual_seed(1)
    return [call(torch.randn(batch, 6, 6, generator=generator)) for batch in (1, 4, 4)]


def square_references(**kwargs) -> tuple[nn.Module, References]:
    module = seeded(Square)
    return module, references_of(module, square_calls(), **kwargs)
