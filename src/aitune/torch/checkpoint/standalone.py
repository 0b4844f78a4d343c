"""Stands in for the original module when a file is loaded without it: it has the signature, and cannot compute."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

import torch

from aitune.exceptions import AITuneUserInputError, UnsupportedCallError
from aitune.torch.module.forward_signature import ForwardSignature
from aitune.torch.module.graph_match import mismatch
from aitune.torch.module.graph_spec import GraphSpec
from aitune.torch.module.sample_metadata import SampleMetadata


class AbsentModule(torch.nn.Module):
    """The place of a module that was left at home. A call that reaches it belongs to no graph, and is refused.

    Args:
        name: Name of the module.
        graphs: The graphs that can be answered.
    """

    def __init__(self, name: str, graphs: Sequence[GraphSpec]) -> None:
        super().__init__()
        self._name = name
        self._graphs = tuple(graphs)
        self.training = False

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Refuse the call, and say why no graph took it.

        Raises:
            AITuneUserInputError: Always.
        """
        reasons = "; ".join(f"{graph.name}: {self._why_not(graph, args, kwargs)}" for graph in self._graphs)
        raise AITuneUserInputError(
            f"{self._name} was loaded without the original module and cannot answer this call: {reasons}; call it "
            f"within what was tuned, or give ait.load the module"
        )

    @staticmethod
    def _why_not(graph: GraphSpec, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
        try:
            named = graph.forward_signature.bind(args, kwargs)
            metadata = SampleMetadata.from_inputs(named, strict=graph.input_spec.strict)
        except UnsupportedCallError as error:
            return str(error)
        reason = mismatch(metadata, graph)
        return reason or "it fits, and was refused or failed when it was served (the log says why)"

    def extra_repr(self) -> str:
        """Return what stands in the brackets of the printed form."""
        return ", ".join([self._name, *(graph.describe() for graph in self._graphs)])


def absent_module(name: str, graphs: Sequence[GraphSpec]) -> AbsentModule:
    """Make a stand-in whose forward has the recorded signature.

    Args:
        name: Name of the module.
        graphs: The graphs that can be answered, at least one.
    """

    def forward(self: AbsentModule, *args: Any, **kwargs: Any) -> Any:
        return AbsentModule.forward(self, *args, **kwargs)

    forward.__signature__ = _python_signature(graphs[0].forward_signature)  # type: ignore[attr-defined]
    # A class of its own, because a signature belongs to a function and not to an object.
    module: AbsentModule = type("AbsentModule", (AbsentModule,), {"forward": forward})(name, graphs)
    return module


def _python_signature(signature: ForwardSignature) -> inspect.Signature:
    kinds = inspect.Parameter
    parameters = [kinds("self", kinds.POSITIONAL_ONLY)]
    optional_seen = False
    for number, name in enumerate(signature.positional):
        kind = kinds.POSITIONAL_ONLY if number < signature.num_positional_only else kinds.POSITIONAL_OR_KEYWORD
        # Which value a default has is not known, nor needed: it is only a parameter that may be left out.
        optional_seen = optional_seen or name not in signature.required
        parameters.append(kinds(name, kind, default=None if optional_seen else kinds.empty))
    if signature.var_positional is not None:
        parameters.append(kinds(signature.var_positional, kinds.VAR_POSITIONAL))
    for name in signature.keyword_only:
        default = kinds.empty if name in signature.required else None
        parameters.append(kinds(name, kinds.KEYWORD_ONLY, default=default))
    if signature.var_keyword is not None:
        parameters.append(kinds(signature.var_keyword, kinds.VAR_KEYWORD))
    return inspect.Signature(parameters)
