"""Integers and bools that hang on rounding: an argmax between two equal scores may fall to either side."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from aitune.torch.module.sample import Sample
from aitune.torch.task.float64_run import Float64Copy, Float64Unavailable

# More integers than this share hang on rounding: then the runs are not the same computation.
_MAX_TIED_SHARE = 0.5


class RoundedIntegers:
    """Which values integers take in float64, with weights and inputs changed by about their rounding, too.

    The changed runs take eight times as long as the calls in float64, and most candidates give the same integers as
    the original: so they are made when one does not.

    Args:
        module: The original module; it is copied when the runs are made, and not changed.
        calls: Calls of the module.
        outputs: For each call, the tensors that the original returned.
        exact: For the first calls, the tensors that the float64 run returned.
        precision: Precision of the original module.
        seed: Seed of the changes.
        max_parameters: Above this many parameters no float64 copy is made.
    """

    def __init__(
        self,
        module: torch.nn.Module,
        calls: Sequence[Sample],
        outputs: Sequence[Sequence[torch.Tensor]],
        exact: Sequence[Sequence[torch.Tensor]],
        *,
        precision: torch.dtype,
        seed: int,
        max_parameters: int,
    ) -> None:
        self._module = module
        self._calls = calls
        self._outputs = outputs
        self._exact = exact
        self._precision = precision
        self._seed = seed
        self._max_parameters = max_parameters
        self._runs: list[Sequence[Sequence[torch.Tensor]]] = []
        self._columns: dict[int, list[tuple[torch.Tensor, ...]]] = {}

    def alternatives(self, number: int, position: int) -> tuple[torch.Tensor, ...]:
        """Return the other values of an output, each with the output's shape; none where they are not believed.

        Args:
            number: Number of the call.
            position: Position of the output tensor.
        """
        if position not in self._columns:
            self._runs = self._runs or [self._exact, *self._changed_runs()]
            self._columns[position] = self._column(position)
        return self._columns[position][number]

    def _column(self, position: int) -> list[tuple[torch.Tensor, ...]]:
        outputs = [tensors[position] for tensors in self._outputs]
        column = [self._others(number, position) for number in range(len(outputs))]
        num_tied = sum(
            int(torch.stack([other != output for other in others]).any(dim=0).sum())
            for output, others in zip(outputs, column, strict=True)
            if others
        )
        is_believed = num_tied <= _MAX_TIED_SHARE * sum(output.numel() for output in outputs)
        return column if is_believed else [()] * len(column)

    def _others(self, number: int, position: int) -> tuple[torch.Tensor, ...]:
        output = self._outputs[number][position]
        seen = [run[number][position] for run in self._runs if number < len(run) and position < len(run[number])]
        return tuple(
            other
            for other in seen
            if other.shape == output.shape and other.dtype == output.dtype and not torch.equal(other, output)
        )

    def _changed_runs(self) -> list[list[list[torch.Tensor]]]:
        runs: list[list[list[torch.Tensor]]] = []
        try:
            copied = Float64Copy(self._module, self._max_parameters)
            for run in copied.perturbed_runs(self._calls, self._precision, self._seed):
                runs.append(run)
        except Float64Unavailable:
            # The references say why there is no float64 run.
            return runs
        return runs
