"""Small modules with the properties that make real ones hard to run in another way; they build in a moment."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from aitune.torch.module.sample import Sample

_VOCABULARY = 50
_WIDTH = 16


def seeded(make: Callable[[], nn.Module], seed: int = 0) -> nn.Module:
    """Make a module in eval mode whose weights are the same in every process.

    Args:
        make: Makes it.
        seed: Seed of the weights.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return make().eval()


class TinyEncoder(nn.Module):
    """Attention over token ids: two inputs whose lengths agree, a constant argument, a nested output with constants."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(_VOCABULARY, _WIDTH)
        self.linear = nn.Linear(_WIDTH, _WIDTH)
        self.norm = nn.LayerNorm(_WIDTH)

    def forward(self, ids: torch.Tensor, mask: torch.Tensor, *, scale: float = 1.0) -> dict[str, Any]:
        """Encode.

        Args:
            ids: Token ids, int64 [batch, length], below 50.
            mask: 1 for a token and 0 for padding, int64 [batch, length].
            scale: Factor of the scores.

        Returns:
            ``hidden`` [batch, length, 16], ``pooled`` ([batch, 16], None), and a flag.
        """
        embedded = self.embedding(ids)
        scores = embedded @ embedded.transpose(1, 2) * (scale / 4) + (1 - mask[:, None, :].float()) * -1e4
        hidden = self.norm(self.linear(scores.softmax(-1) @ embedded) + embedded)
        return {"hidden": hidden, "pooled": (hidden.mean(1), None), "is_encoded": True}


def tiny_encoder() -> nn.Module:
    """Make a :class:`TinyEncoder` with fixed weights."""
    return seeded(TinyEncoder)


def tiny_encoder_call(batch_size: int, length: int, seed: int = 0) -> Sample:
    """Make a call of :class:`TinyEncoder`.

    Args:
        batch_size: Number of rows.
        length: Tokens in a row.
        seed: Seed of the ids.
    """
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(0, _VOCABULARY, (batch_size, length), generator=generator)
    mask = torch.ones(batch_size, length, dtype=torch.long)
    mask[0, length // 2 + 1 :] = 0
    return Sample((ids, mask), {"scale": 0.5})


class TinyMLP(nn.Module):
    """Two linear layers: one tensor in, one tensor out."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Run the layers on float32 [batch, 8]; returns [batch, 4]."""
        output: torch.Tensor = self.layers(x)
        return output


class TinyConvNet(nn.Module):
    """A convolution with batch norm and pooling: weights with a memory layout to choose, buffers that must stay."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(3, 8, 3, padding=1)
        self.norm = nn.BatchNorm2d(8)
        self.linear = nn.Linear(8, 4)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        """Classify float32 [batch, 3, height, width]; returns [batch, 4]."""
        features = torch.relu(self.norm(self.convolution(image))).mean((2, 3))
        output: torch.Tensor = self.linear(features)
        return output


class CallCounter(nn.Module):
    """A linear layer with a buffer that counts the calls."""

    calls: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 4)
        self.register_buffer("calls", torch.zeros((), dtype=torch.long))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Count, and run the layer on float32 [batch, 8]; returns [batch, 4]."""
        self.calls += 1
        output: torch.Tensor = self.linear(x)
        return output


class InputChanger(nn.Module):
    """Adds one to its input, in place."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Change a float tensor and return twice its new value."""
        x.add_(1)
        return x * 2
