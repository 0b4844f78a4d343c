"""The kinds of models of the zoo: small, with random weights, and one real sentence encoder.

Those that transformers has come from there; the others are written down here, as small as they can be and still have
the layers of their kind. timm is not used: installing it would bring torchvision along.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

NUM_SAMPLES = 16
_LENGTH = 32


@dataclass(frozen=True)
class Kind:
    """One model of the zoo.

    Args:
        make: Makes the module.
        samples: Makes its samples, each without the batch axis: a tensor, or a dict of arguments.
    """

    make: Callable[[], nn.Module]
    samples: Callable[[], Sequence[Any]]


def _tensors(*shape: int) -> Callable[[], list[torch.Tensor]]:
    return lambda: [torch.randn(*shape) for _ in range(NUM_SAMPLES)]


def _tokens(vocabulary: int, *names: str) -> Callable[[], list[dict[str, torch.Tensor]]]:
    def make() -> list[dict[str, torch.Tensor]]:
        return [{name: torch.randint(0, vocabulary, (_LENGTH,)) for name in names} for _ in range(NUM_SAMPLES)]

    return make


# -- from transformers -------------------------------------------------------------------------------------------------


def _from_transformers(model: str, config: str, **settings: Any) -> Callable[[], nn.Module]:
    def make() -> nn.Module:
        import transformers

        made: nn.Module = getattr(transformers, model)(getattr(transformers, config)(**settings))
        return made

    return make


RESNET18 = _from_transformers(
    "ResNetForImageClassification",
    "ResNetConfig",
    embedding_size=64,
    hidden_sizes=[64, 128, 256, 512],
    depths=[2, 2, 2, 2],
    layer_type="basic",
    num_labels=1000,
)
CONVNEXT = _from_transformers(
    "ConvNextForImageClassification",
    "ConvNextConfig",
    hidden_sizes=[48, 96, 192, 384],
    depths=[2, 2, 6, 2],
    num_labels=1000,
)
BERT = _from_transformers(
    "BertModel",
    "BertConfig",
    hidden_size=256,
    num_hidden_layers=4,
    num_attention_heads=4,
    intermediate_size=1024,
    vocab_size=1000,
)
VIT_TINY = _from_transformers(
    "ViTForImageClassification",
    "ViTConfig",
    hidden_size=192,
    num_hidden_layers=12,
    num_attention_heads=3,
    intermediate_size=768,
    image_size=224,
    num_labels=1000,
)
GPT2 = _from_transformers("GPT2Model", "GPT2Config", n_layer=4, n_embd=384, n_head=6, vocab_size=1000, use_cache=False)


# -- written down here -------------------------------------------------------------------------------------------------


def mlp() -> nn.Module:
    """Make four linear layers."""
    return nn.Sequential(
        nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 256), nn.ReLU(),
        nn.Linear(256, 10),
    )  # fmt: skip


class _SqueezeExcite(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.gate = nn.Sequential(
            nn.AdaptiveAvgPool2d(1),
            nn.Conv2d(channels, channels // 4, 1),
            nn.ReLU(),
            nn.Conv2d(channels // 4, channels, 1),
            nn.Hardsigmoid(),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        gate: torch.Tensor = self.gate(x)
        return x * gate


def _conv(inputs: int, outputs: int, kernel: int, stride: int = 1, groups: int = 1) -> nn.Sequential:
    conv = nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, groups=groups, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(outputs))


class _InvertedResidual(nn.Module):
    def __init__(self, inputs: int, wide: int, outputs: int, kernel: int, stride: int) -> None:
        super().__init__()
        self.is_residual = stride == 1 and inputs == outputs
        self.body = nn.Sequential(
            _conv(inputs, wide, 1), nn.Hardswish(), _conv(wide, wide, kernel, stride, wide), _SqueezeExcite(wide),
            nn.Hardswish(), _conv(wide, outputs, 1),
        )  # fmt: skip

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.body(x)
        return x + out if self.is_residual else out


def mobilenet_v3() -> nn.Module:
    """Make the small MobileNetV3 (Howard et al., 2019, table 2), every block with squeeze-and-excite."""
    blocks = [
        (16, 16, 16, 3, 2), (16, 72, 24, 3, 2), (24, 88, 24, 3, 1), (24, 96, 40, 5, 2), (40, 240, 40, 5, 1),
        (40, 240, 40, 5, 1), (40, 120, 48, 5, 1), (48, 144, 48, 5, 1), (48, 288, 96, 5, 2), (96, 576, 96, 5, 1),
        (96, 576, 96, 5, 1),
    ]  # fmt: skip
    return nn.Sequential(
        _conv(3, 16, 3, 2), nn.Hardswish(), *(_InvertedResidual(*block) for block in blocks), _conv(96, 576, 1),
        nn.Hardswish(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(576, 1024), nn.Hardswish(),
        nn.Linear(1024, 1000),
    )  # fmt: skip


def _double_conv(inputs: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(_conv(inputs, outputs, 3), nn.ReLU(), _conv(outputs, outputs, 3), nn.ReLU())


class UNet(nn.Module):
    """A U-Net of three levels (Ronneberger et al., 2015)."""

    def __init__(self, width: int = 24) -> None:
        super().__init__()
        self.first, self.second = _double_conv(3, width), _double_conv(width, 2 * width)
        self.bottom = _double_conv(2 * width, 4 * width)
        self.up_second = nn.ConvTranspose2d(4 * width, 2 * width, 2, 2)
        self.join_second = _double_conv(4 * width, 2 * width)
        self.up_first = nn.ConvTranspose2d(2 * width, width, 2, 2)
        self.join_first = _double_conv(2 * width, width)
        self.last = nn.Conv2d(width, 2, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Segment images [batch, 3, height, width], both multiples of 4."""
        first = self.first(x)
        second = self.second(nn.functional.max_pool2d(first, 2))
        bottom = self.bottom(nn.functional.max_pool2d(second, 2))
        joined = self.join_second(torch.cat([self.up_second(bottom), second], 1))
        out: torch.Tensor = self.last(self.join_first(torch.cat([self.up_first(joined), first], 1)))
        return out


class Lstm(nn.Module):
    """Two LSTM layers and a classifier on the last step."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(64, 128, num_layers=2, batch_first=True)
        self.head = nn.Linear(128, 20)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Classify sequences [batch, steps, 64]."""
        steps, _ = self.lstm(x)
        out: torch.Tensor = self.head(steps[:, -1])
        return out


def audio_cnn() -> nn.Module:
    """Make a CNN over raw sound, as for the pitch of a frame of 1024 samples."""
    layers: list[nn.Module] = []
    for inputs, outputs, kernel, stride in ((1, 64, 63, 4), (64, 32, 31, 1), (32, 32, 31, 1), (32, 64, 15, 1)):
        conv = nn.Conv1d(inputs, outputs, kernel, stride, kernel // 2)
        layers += [conv, nn.ReLU(), nn.BatchNorm1d(outputs), nn.MaxPool1d(2)]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(64 * 16, 360), nn.Sigmoid())


class _MixerBlock(nn.Module):
    def __init__(self, tokens: int, width: int) -> None:
        super().__init__()
        self.norm_tokens, self.norm_channels = nn.LayerNorm(width), nn.LayerNorm(width)
        self.tokens = nn.Sequential(nn.Linear(tokens, 2 * tokens), nn.GELU(), nn.Linear(2 * tokens, tokens))
        self.channels = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.tokens(self.norm_tokens(x).transpose(1, 2)).transpose(1, 2)
        out: torch.Tensor = x + self.channels(self.norm_channels(x))
        return out


class Mixer(nn.Module):
    """An MLP-Mixer (Tolstikhin et al., 2021) of four blocks."""

    def __init__(self, width: int = 192, patch: int = 16, image: int = 128) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, patch, patch)
        self.blocks = nn.Sequential(*(_MixerBlock((image // patch) ** 2, width) for _ in range(4)))
        self.head = nn.Linear(width, 100)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Classify images [batch, 3, 128, 128]."""
        out: torch.Tensor = self.head(self.blocks(self.patches(x).flatten(2).transpose(1, 2)).mean(1))
        return out


class Recommender(nn.Module):
    """Categories through tables and numbers through layers, joined by products (DLRM, Naumov et al., 2019)."""

    def __init__(self, categories: int = 8, width: int = 32) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(1000, width) for _ in range(categories))
        self.bottom = nn.Sequential(nn.Linear(13, 128), nn.ReLU(), nn.Linear(128, width), nn.ReLU())
        self.top = nn.Sequential(nn.Linear((categories + 1) ** 2 + width, 256), nn.ReLU(), nn.Linear(256, 1))

    def forward(self, numbers: torch.Tensor, categories: torch.Tensor) -> torch.Tensor:
        """Predict from numbers [batch, 13] and categories [batch, 8], below 1000."""
        dense = self.bottom(numbers)
        rows = [table(categories[:, place]) for place, table in enumerate(self.tables)]
        stacked = torch.stack([dense, *rows], 1)
        products = (stacked @ stacked.transpose(1, 2)).flatten(1)
        out: torch.Tensor = torch.sigmoid(self.top(torch.cat([dense, products], 1)))
        return out


def _people() -> list[dict[str, torch.Tensor]]:
    return [{"numbers": torch.randn(13), "categories": torch.randint(0, 1000, (8,))} for _ in range(NUM_SAMPLES)]


class SpeechEncoder(nn.Module):
    """Strided convolutions over a mel spectrogram, then a transformer encoder, as speech recognisers begin."""

    def __init__(self, width: int = 192) -> None:
        super().__init__()
        self.first = nn.Conv1d(80, width, 3, padding=1)
        self.second = nn.Conv1d(width, width, 3, 2, padding=1)
        layer = nn.TransformerEncoderLayer(width, 4, 4 * width, activation="gelu", batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, 3, enable_nested_tensor=False)

    def forward(self, mel: torch.Tensor) -> torch.Tensor:
        """Encode spectrograms [batch, 80, frames]."""
        x = nn.functional.gelu(self.second(nn.functional.gelu(self.first(mel))))
        out: torch.Tensor = self.encoder(x.transpose(1, 2))
        return out


# -- real weights ------------------------------------------------------------------------------------------------------


def _demo() -> Any:
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "examples"))
    import demo

    return demo


def minilm() -> nn.Module:
    """Load all-MiniLM-L6-v2 as the demo does."""
    demo = _demo()
    model: nn.Module = demo.load(demo.weights_folder())[0]
    return model


def _sentences() -> list[dict[str, torch.Tensor]]:
    demo = _demo()
    _, tokenizer = demo.load(demo.weights_folder())
    sentences = demo.SENTENCES[:NUM_SAMPLES]
    tokens = tokenizer(sentences, padding="max_length", max_length=_LENGTH, truncation=True, return_tensors="pt")
    return [{name: tensor[row] for name, tensor in tokens.items()} for row in range(len(sentences))]


ZOO = {
    "mlp": Kind(mlp, _tensors(256)),
    "resnet18": Kind(RESNET18, _tensors(3, 224, 224)),
    "mobilenetv3": Kind(mobilenet_v3, _tensors(3, 224, 224)),
    "unet": Kind(UNet, _tensors(3, 96, 96)),
    "convnext": Kind(CONVNEXT, _tensors(3, 160, 160)),
    "bert": Kind(BERT, _tokens(1000, "input_ids")),
    "vit-tiny": Kind(VIT_TINY, _tensors(3, 224, 224)),
    "gpt2": Kind(GPT2, _tokens(1000, "input_ids")),
    "lstm": Kind(Lstm, _tensors(32, 64)),
    "audio-cnn": Kind(audio_cnn, _tensors(1, 1024)),
    "mixer": Kind(Mixer, _tensors(3, 128, 128)),
    "recommender": Kind(Recommender, _people),
    "speech-encoder": Kind(SpeechEncoder, _tensors(80, 200)),
    "minilm": Kind(minilm, _sentences),
}
