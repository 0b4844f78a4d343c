"""Run a copy of a module in float64, to know what is right and how much the module itself rounds."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from aitune.torch.module.preserved_state import preserved_state
from aitune.torch.module.sample import Sample
from aitune.torch.task.structure import clone_tensors, tensors_with_locators

# Above this many parameters (4 bytes each: 1 GB) the float64 copy, twice that, is not made.
DEFAULT_MAX_FLOAT64_PARAMETERS = 250_000_000

# Pairs of runs with weights and inputs changed by about their rounding, to see which integers hang on it.
_NUM_PERTURBED_PAIRS = 4

# Size of that change in steps of the dtype: rounding adds up over the layers of a module.
_PERTURBATION_STEPS = {torch.float32: 4.0}


class Float64Copy:
    """A float64 copy of a module; the module itself is not touched.

    Args:
        module: The module.
        max_parameters: Most parameters that are copied.

    Raises:
        Float64Unavailable: The module is too large, or cannot be copied.
    """

    def __init__(self, module: torch.nn.Module, max_parameters: int = DEFAULT_MAX_FLOAT64_PARAMETERS) -> None:
        tensors = [*module.parameters(), *module.buffers()]
        number = sum(tensor.numel() for tensor in tensors)
        if number > max_parameters:
            raise Float64Unavailable(
                f"the module has {number:,} parameters, a float64 copy is made up to {max_parameters:,}"
            )
        try:
            copied = copy.deepcopy(module)
        except Exception as error:
            raise Float64Unavailable(f"the module cannot be copied: {type(error).__name__}: {error}") from error
        shared = {id(tensor) for tensor in tensors} & {id(t) for t in (*copied.parameters(), *copied.buffers())}
        if copied is module or shared:
            raise Float64Unavailable("the module's copy shares weights with it")
        try:
            self._module = copied.double()
        except Exception as error:
            raise Float64Unavailable(f"the copy cannot be made float64: {type(error).__name__}: {error}") from error

    def run(self, call: Sample) -> list[torch.Tensor]:
        """Run one call and return the tensors of the output, in order.

        Args:
            call: A call of the original module.

        Raises:
            Float64Unavailable: The module does not run in float64.
        """
        return self._run(Sample(*to_float64(call)))

    def rounded_run(self, call: Sample, dtype: torch.dtype) -> list[torch.Tensor]:
        """Run one call with the result of every operation rounded to a dtype, and return the tensors of the output.

        It takes the branches of the float64 run and rounds as the module does: where the module is this far from the
        float64 run as well, rounding alone explains it.

        Args:
            call: A call of the original module.
            dtype: Precision of the original module.

        Raises:
            Float64Unavailable: The module does not run in float64.
        """
        with _RoundResults(dtype):
            return self._run(Sample(*to_float64(call)))

    def perturbed_runs(
        self, calls: Sequence[Sample], dtype: torch.dtype, seed: int
    ) -> Iterator[list[list[torch.Tensor]]]:
        """Run calls with weights and inputs changed by about their rounding; yield the output tensors of all calls.

        Args:
            calls: Calls of the original module.
            dtype: Precision of the original module.
            seed: Seed of the changes.

        Raises:
            Float64Unavailable: The module does not run in float64.
        """
        step = torch.finfo(dtype).eps * _PERTURBATION_STEPS.get(dtype, 1.0)
        for number in range(_NUM_PERTURBED_PAIRS):
            # Both signs of one change, so that a tie falls once to either side.
            for sign in (1.0, -1.0):
                perturbation = _Perturbation(sign * step, seed + number)
                with torch.no_grad():
                    for parameter in self._module.parameters():
                        parameter.mul_(perturbation.factor(parameter))
                yield [self._run(_changed(call, perturbation)) for call in calls]
                perturbation = _Perturbation(sign * step, seed + number)
                with torch.no_grad():
                    for parameter in self._module.parameters():
                        parameter.div_(perturbation.factor(parameter))

    def _run(self, call: Sample) -> list[torch.Tensor]:
        try:
            with preserved_state(self._module), torch.no_grad():
                output = clone_tensors(self._module(*call.args, **call.kwargs))
        except Exception as error:
            raise Float64Unavailable(f"the module does not run in float64: {type(error).__name__}: {error}") from error
        return [tensor for _, tensor in tensors_with_locators(output)]


class _RoundResults(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Rounds the float64 results of all operations to a coarser dtype; views stay views."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._dtype = dtype

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        if any(returned.alias_info is not None for returned in func._schema.returns):
            return result
        return pytree.tree_map_only(torch.Tensor, self._rounded, result)

    def _rounded(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.to(self._dtype).to(torch.float64) if tensor.dtype is torch.float64 else tensor


class _Perturbation:
    """A repeatable stream of factors close to one."""

    def __init__(self, step: float, seed: int) -> None:
        self._step = step
        self._generator = torch.Generator().manual_seed(seed)

    def factor(self, tensor: torch.Tensor) -> torch.Tensor:
        noise = torch.randn(tensor.shape, generator=self._generator, dtype=torch.float64).to(tensor.device)
        return 1.0 + self._step * noise


def _changed(call: Sample, perturbation: _Perturbation) -> Sample:
    def changed(tensor: torch.Tensor) -> torch.Tensor:
        return tensor * perturbation.factor(tensor) if tensor.is_floating_point() else tensor

    args, kwargs = pytree.tree_map_only(torch.Tensor, changed, to_float64(call))
    return Sample(args, kwargs)


class Float64Unavailable(Exception):  # noqa: N818 - not an error of the user: eager is the reference then
    """There is no float64 run of this module; the message says why."""


def to_float64(call: Sample) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Copy a call with its floating point tensors as float64 and its complex ones as complex128.

    Args:
        call: A call of a module.
    """

    def widened(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.is_floating_point():
            return tensor.to(torch.float64, copy=True)
        if tensor.is_complex():
            return tensor.to(torch.complex128, copy=True)
        return tensor.clone()

    args, kwargs = pytree.tree_map_only(torch.Tensor, widened, (call.args, call.kwargs))
    return args, kwargs
