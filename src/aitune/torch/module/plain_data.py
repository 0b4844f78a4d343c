"""Graph specs as plain data (dicts, lists, strings, numbers) and back, so that a backend can be rebuilt elsewhere."""

from __future__ import annotations

import json
from typing import Any

import torch
from torch.utils import _pytree as pytree

from aitune.exceptions import ArtifactError
from aitune.torch.module.forward_signature import ForwardSignature
from aitune.torch.module.graph_spec import GraphSpec
from aitune.torch.module.plain_constants import constant_from_dict, constant_to_dict, torch_constant
from aitune.torch.module.sample_metadata import SampleMetadata
from aitune.torch.module.tensor_spec import Axis, Symbol, TensorSpec
from aitune.utils.error_text import error_line


def graph_spec_to_dict(graph_spec: GraphSpec) -> dict[str, Any]:
    """Write a graph spec as plain data.

    Args:
        graph_spec: The spec.

    Raises:
        ArtifactError: A constant or a container has no plain form, or a text is none that can be encoded.
    """
    signature = graph_spec.forward_signature
    symbols = {**graph_spec.symbols}
    for spec in graph_spec.output_spec.tensor_specs:
        symbols.update({axis.symbol.name: axis.symbol for axis in spec.axes if axis.symbol is not None})
    plain = {
        "name": graph_spec.name,
        "symbols": [
            {"name": s.name, "min": s.min, "max": s.max, "opt": s.opt, "is_batch": s.is_batch} for s in symbols.values()
        ],
        "inputs": _metadata_to_dict(graph_spec.input_spec),
        "outputs": _metadata_to_dict(graph_spec.output_spec),
        **({"changed_arguments": list(graph_spec.changed_arguments)} if graph_spec.changed_arguments else {}),
        "signature": {
            "positional": list(signature.positional),
            "num_positional_only": signature.num_positional_only,
            "var_positional": signature.var_positional,
            "keyword_only": list(signature.keyword_only),
            "var_keyword": signature.var_keyword,
            "required": sorted(signature.required),
            "indirect": signature.indirect,
            "by_name": sorted(signature.by_name),
        },
    }
    try:
        json.dumps(plain, ensure_ascii=False).encode("utf-8")
    except UnicodeEncodeError as error:
        raise ArtifactError(f"{graph_spec.name} holds a text that no file can hold: {error}") from error
    return plain


def graph_spec_from_dict(data: dict[str, Any]) -> GraphSpec:
    """Read a graph spec from what :func:`graph_spec_to_dict` wrote.

    Args:
        data: Plain data.

    Raises:
        ArtifactError: The data is not a graph spec, or names a container that this process does not know.
    """
    try:
        symbols = {entry["name"]: Symbol(**entry) for entry in data["symbols"]}
        signature = data["signature"]
        return GraphSpec(
            data["name"],
            _metadata_from_dict(data["inputs"], symbols),
            _metadata_from_dict(data["outputs"], symbols),
            ForwardSignature(
                positional=tuple(signature["positional"]),
                num_positional_only=signature["num_positional_only"],
                var_positional=signature["var_positional"],
                keyword_only=tuple(signature["keyword_only"]),
                var_keyword=signature["var_keyword"],
                required=frozenset(signature["required"]),
                indirect=signature["indirect"],
                by_name=frozenset(signature["by_name"]),
            ),
            changed_arguments=data.get("changed_arguments", ()),
        )
    except Exception as error:
        # Torch's reader of structures raises what comes, such as AssertionError, when it is given something else.
        raise ArtifactError(
            f"the stored graph spec cannot be read: {error}; it may come from another version of aitune, or use a "
            f"container class whose module is not imported yet"
        ) from error


def _metadata_to_dict(metadata: SampleMetadata) -> dict[str, Any]:
    try:
        structure = pytree.treespec_dumps(metadata.structure)
        # As written, which is how metadata compares structures.
        is_faithful = str(pytree.treespec_loads(structure)) == str(metadata.structure)
    except Exception as error:
        # Keys may be anything, and so may what is registered by others to write and read a container.
        raise ArtifactError(
            f"{metadata.describe()} holds a container that has no stored form: {error_line(error)}"
        ) from error
    if not is_faithful:
        raise ArtifactError(
            f"{metadata.describe()} holds a container that would come back as another one: its keys have to be texts "
            f"or numbers"
        )
    return {
        "structure": structure,
        "strict": metadata.strict,
        "leaves": [
            _tensor_spec_to_dict(leaf) if isinstance(leaf, TensorSpec) else constant_to_dict(leaf)
            for leaf in metadata.leaves
        ],
    }


def _metadata_from_dict(data: dict[str, Any], symbols: dict[str, Symbol]) -> SampleMetadata:
    return SampleMetadata(
        pytree.treespec_loads(data["structure"]),
        tuple(
            _tensor_spec_from_dict(leaf, symbols) if "axes" in leaf else constant_from_dict(leaf)
            for leaf in data["leaves"]
        ),
        data["strict"],
    )


def _tensor_spec_to_dict(spec: TensorSpec) -> dict[str, Any]:
    return {
        "locator": list(spec.locator),
        "axes": [{"size": axis.size, "symbol": axis.symbol.name if axis.symbol else None} for axis in spec.axes],
        "dtype": str(spec.dtype).removeprefix("torch."),
        "device": spec.device,
    }


def _tensor_spec_from_dict(data: dict[str, Any], symbols: dict[str, Symbol]) -> TensorSpec:
    axes = tuple(Axis(axis["size"], symbols[axis["symbol"]] if axis["symbol"] else None) for axis in data["axes"])
    return TensorSpec(tuple(data["locator"]), axes, torch_constant(data["dtype"], torch.dtype), data["device"])
