"""Parts of strategies."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aitune.utils.lazy_names import lazy_names

if TYPE_CHECKING:
    from aitune.torch.tune_strategy.mixin.find_max_batch_size_mixin import FindMaxBatchSizeMixin

__all__ = ["FindMaxBatchSizeMixin"]

__getattr__, __dir__ = lazy_names(__name__, {"find_max_batch_size_mixin": ("FindMaxBatchSizeMixin",)})
