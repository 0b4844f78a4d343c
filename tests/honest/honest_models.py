"""Twelve architectures with small random weights, each with the calls that a user would record."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn import functional

from aitune.testing.graphs import call
from aitune.testing.tiny_models import seeded
from aitune.torch.module.sample import Sample

os.environ.setdefault("HF_HUB_OFFLINE", "1")
VOCABULARY = 90


class Architecture(NamedTuple):
    """How to make a module, and its calls with the batch size of each."""

    make: Callable[[], nn.Module]
    calls: Callable[[], Sequence[tuple[int, Sample]]]


def images(channels: int = 3, size: int = 32) -> list[tuple[int, Sample]]:
    generator = torch.Generator().manual_seed(1)
    return [(batch, call(torch.rand(batch, channels, size, size, generator=generator))) for batch in (1, 4)]


def pixels() -> list[tuple[int, Sample]]:
    return [(batch, call(pixel_values=sample.args[0])) for batch, sample in images()]


def tokens(with_mask: bool = True) -> list[tuple[int, Sample]]:
    generator = torch.Generator().manual_seed(2)
    calls = []
    for batch in (1, 4):
        for length in (5, 11):
            ids = torch.randint(1, VOCABULARY, (batch, length), generator=generator)
            mask = torch.ones_like(ids)
            mask[-1, length - 2 :] = 0
            inputs = {"input_ids": ids, "attention_mask": mask} if with_mask else {"input_ids": ids}
            calls.append((batch, call(**inputs)))
    return calls


def sequences() -> list[tuple[int, Sample]]:
    generator = torch.Generator().manual_seed(3)
    return [(batch, call(torch.randn(batch, 12, 16, generator=generator))) for batch in (1, 4)]


def waves() -> list[tuple[int, Sample]]:
    generator = torch.Generator().manual_seed(4)
    return [
        (batch, call(torch.randn(batch, 1, length, generator=generator))) for batch in (1, 4) for length in (800, 1200)
    ]


def pairs() -> list[tuple[int, Sample]]:
    return [
        (batch, call(**sample.kwargs, decoder_input_ids=sample.kwargs["input_ids"][:, :4].clone()))
        for batch, sample in tokens()
    ]


def convolutions() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(8, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.AdaptiveAvgPool2d(1),
        nn.Flatten(), nn.Linear(16, 10),
    )  # fmt: skip


def perceptron() -> nn.Module:
    return nn.Sequential(
        nn.Linear(16, 64), nn.BatchNorm1d(64), nn.GELU(), nn.Linear(64, 64), nn.BatchNorm1d(64), nn.GELU(),
        nn.Linear(64, 3),
    )  # fmt: skip


def vectors() -> list[tuple[int, Sample]]:
    return [(batch, call(sample.args[0][:, 0])) for batch, sample in sequences()]


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.recurrent = nn.LSTM(16, 24, num_layers=2, batch_first=True)
        self.head = nn.Linear(24, 5)

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        states, (last, _) = self.recurrent(x)
        logits = self.head(states)
        return {"logits": logits, "last": last[-1], "tags": logits.argmax(-1)}


class UNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.down = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.GroupNorm(2, 8), nn.SiLU())
        self.middle = nn.Sequential(nn.Conv2d(8, 16, 3, stride=2, padding=1), nn.GroupNorm(2, 16), nn.SiLU())
        self.up = nn.ConvTranspose2d(16, 8, 2, stride=2)
        self.out = nn.Conv2d(16, 2, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        fine = self.down(x)
        coarse = self.up(self.middle(fine))
        output: torch.Tensor = self.out(torch.cat([fine, functional.interpolate(coarse, scale_factor=1.0)], dim=1))
        return output


class AudioNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv1d(1, 8, 16, stride=4), nn.BatchNorm1d(8), nn.ReLU(), nn.Conv1d(8, 16, 8, stride=2), nn.ReLU()
        )
        self.head = nn.Linear(16, 4)

    def forward(self, wave: torch.Tensor) -> torch.Tensor:
        scores: torch.Tensor = self.head(self.layers(wave).mean(-1)).log_softmax(-1)
        return scores


def from_transformers(name: str, **settings: Any) -> Callable[[], nn.Module]:
    def make() -> nn.Module:
        import transformers

        config = getattr(transformers, f"{name}Config")(**settings)
        module: nn.Module = getattr(transformers, f"{name}Model")(config)
        return module

    return make


TEXT = {"vocab_size": VOCABULARY, "attn_implementation": "eager"}
ARCHITECTURES: dict[str, Architecture] = {
    "cnn": Architecture(convolutions, images),
    "perceptron": Architecture(perceptron, vectors),
    "lstm": Architecture(Recurrent, sequences),
    "unet": Architecture(UNet, images),
    "audio": Architecture(AudioNet, waves),
    "resnet": Architecture(
        from_transformers("ResNet", embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], layer_type="basic"), pixels
    ),
    "mobilenet": Architecture(from_transformers("MobileNetV2", depth_multiplier=0.25, image_size=32), pixels),
    "convnext": Architecture(
        from_transformers("ConvNext", hidden_sizes=[8, 16], depths=[1, 1], num_stages=2, patch_size=2), pixels
    ),
    "vit": Architecture(
        from_transformers(
            "ViT", hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64, image_size=32,
            patch_size=8,
        ),
        pixels,
    ),
    "bert": Architecture(
        from_transformers(
            "Bert", hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64, **TEXT
        ),
        tokens,
    ),
    "gpt": Architecture(
        from_transformers("GPT2", n_embd=32, n_layer=2, n_head=2, n_positions=64, use_cache=False, **TEXT), tokens
    ),
    "t5": Architecture(
        from_transformers(
            "T5", d_model=32, d_kv=16, d_ff=64, num_layers=1, num_heads=2, use_cache=False, decoder_start_token_id=0,
            vocab_size=VOCABULARY,
        ),
        pairs,
    ),
}  # fmt: skip


def make_module(name: str) -> nn.Module:
    """Make an architecture in eval mode; norms get statistics that are not those of a fresh module."""
    module = seeded(ARCHITECTURES[name].make)
    generator = torch.Generator().manual_seed(5)
    for part in module.modules():
        if isinstance(part, nn.BatchNorm1d | nn.BatchNorm2d):
            part.running_mean.normal_(0.0, 0.1, generator=generator)
            part.running_var.uniform_(0.5, 1.5, generator=generator)
    return module
