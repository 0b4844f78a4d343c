"""The nesting of arguments and outputs as torch's pytree writes it in JSON, looked through without torch.

torch's own reader imports whatever module the text names (for enum keys and the factories of default dicts). What a
text names is found here first, so that a file can be refused before that.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

_PROTOCOL = 1
_DEEPEST = 100
_NODE = {"type", "context", "children_spec"}
NAMED_TUPLE = "collections.namedtuple"
DEFAULT_DICT = "collections.defaultdict"


@dataclass(frozen=True)
class Structure:
    """What a structure's text names.

    Args:
        leaves: Number of its leaves.
        containers: Names of the containers' classes, as torch's pytree registers them.
        imports: Objects (``"module:name"``) that torch's reader would import.
    """

    leaves: int
    containers: frozenset[str]
    imports: frozenset[str]


def parse_structure(text: str) -> Structure:
    """Look through a structure.

    Args:
        text: What torch's ``treespec_dumps`` wrote.

    Raises:
        ValueError: It is not such a text.
    """
    try:
        content = json.loads(text)
    except RecursionError as error:
        raise ValueError("the structure is nested too deeply") from error
    if not (isinstance(content, list) and len(content) == 2 and content[0] == _PROTOCOL):
        raise ValueError(f"the structure is not of torch's protocol {_PROTOCOL}")
    leaves, containers, imports = 0, set(), set()
    for node in _nodes(content[1], 0):
        if node["type"] is None:
            leaves += 1
            continue
        containers.add(node["context"] if node["type"] == NAMED_TUPLE else node["type"])
        imports |= set(_imports(node))
    if not all(isinstance(name, str) for name in containers):
        raise ValueError("the structure names a container by something that is no text")
    return Structure(leaves, frozenset(containers), frozenset(imports))


def _nodes(node: Any, depth: int) -> Iterator[dict[str, Any]]:
    if not (isinstance(node, dict) and set(node) == _NODE and isinstance(node["children_spec"], list)):
        raise ValueError("the structure holds something that is no node")
    if depth > _DEEPEST:
        raise ValueError(f"the structure is nested deeper than {_DEEPEST} levels")
    if node["type"] is None and (node["context"] is not None or node["children_spec"]):
        raise ValueError("the structure has a leaf with content")
    yield node
    for child in node["children_spec"]:
        yield from _nodes(child, depth + 1)


def _imports(node: dict[str, Any]) -> Iterator[str]:
    context = node["context"]
    if isinstance(context, str):
        # torch writes the context of most containers as JSON inside the JSON; what is none, it does not parse either.
        with suppress(ValueError):
            context = json.loads(context)
    if node["type"] == DEFAULT_DICT and isinstance(context, dict):
        yield f"{context.get('default_factory_module')}:{context.get('default_factory_name')}"
    pending = [context]
    while pending:
        value = pending.pop()
        if isinstance(value, dict):
            if "__enum__" in value:
                yield str(value.get("fqn"))
            pending.extend(value.values())
        elif isinstance(value, list):
            pending.extend(value)
