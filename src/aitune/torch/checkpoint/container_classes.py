"""The container classes in stored structures: named when saved, found again when loaded, never imported for a file.

A file may name any class of any module. Importing it would run whatever that module runs, so it has to be imported
already: by the user, or by the code of the model that is given to ``load``. A program that has a class under another
name says so with :func:`register_container`.
"""

from __future__ import annotations

import enum
from collections import UserDict
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import is_dataclass
from typing import Any

from torch.utils import _pytree as pytree

from aitune.artifact.graph_record import GraphRecord
from aitune.artifact.manifest import ContainerRecord
from aitune.artifact.structure import parse_structure
from aitune.exceptions import AITuneUserInputError, ArtifactError
from aitune.torch.module.containers import container_kind, register_containers
from aitune.torch.module.plain_constants import find_imported

_FACTORIES = frozenset(f"builtins:{name}" for name in ("list", "dict", "set", "int", "float", "str", "tuple", "bool"))
_OWN_MODULES = ("builtins", "collections")


def register_container(cls: type[Any], name: str | None = None) -> None:
    """Let files that are loaded without their modules give a class back as a container of arguments or outputs.

    Classes of imported modules are found without this. It is for a class that has another name here than where the file
    was saved, such as one that was defined in the script that saved it (``"__main__.Answer"``).

    Args:
        cls: A dataclass, named tuple or ``UserDict`` class, or one that is registered with torch's pytree.
        name: Name of the class in the file, as ``aitune show`` gives it; ``None`` takes the class's own.

    Raises:
        AITuneUserInputError: It is none of these, or the name stands for another class already.
    """
    if not isinstance(cls, type):
        raise AITuneUserInputError(f"register_container expects a class, got {cls!r}")
    if cls not in pytree.SUPPORTED_SERIALIZED_TYPES:
        register_containers(_blank(cls))
    entry = pytree.SUPPORTED_SERIALIZED_TYPES.get(cls)
    if entry is None:
        raise AITuneUserInputError(
            f"{cls.__module__}.{cls.__qualname__} is no dataclass, named tuple or UserDict class; register it with "
            f"torch.utils._pytree.register_pytree_node(..., serialized_type_name=...) first"
        )
    name = name or entry.serialized_type_name
    known = pytree.SERIALIZED_TYPE_TO_PYTHON_TYPE.setdefault(name, cls)
    if known is not cls:
        raise AITuneUserInputError(
            f"the name {name!r} stands for {known.__module__}.{known.__qualname__} already, it cannot stand for "
            f"{cls.__module__}.{cls.__qualname__} too"
        )


def containers_of(graphs: Iterable[GraphRecord]) -> list[ContainerRecord]:
    """Describe the container classes of some graphs that are no part of Python.

    Args:
        graphs: The graphs; their classes are registered here, because they were recorded here.

    Raises:
        ArtifactError: A class cannot be found again by its name.
    """
    records = []
    for name in sorted(_named_containers(graphs)):
        cls = pytree.SERIALIZED_TYPE_TO_PYTHON_TYPE[name]
        if cls.__module__ in _OWN_MODULES:
            continue
        if find_imported(cls.__module__, cls.__qualname__) is not cls:
            raise ArtifactError(
                f"{cls.__module__}.{cls.__qualname__} is a container in the arguments or outputs, and cannot be found "
                f"by that name; move the class to the top level of a module that can be imported"
            )
        records.append(ContainerRecord(name=name, module=cls.__module__, qualname=cls.__qualname__, kind=_kind(cls)))
    return records


def _named_containers(graphs: Iterable[GraphRecord]) -> set[str]:
    texts = [values.structure for graph in graphs for values in (graph.inputs, graph.outputs)]
    return {name for text in texts for name in parse_structure(text).containers}


def _kind(cls: type[Any]) -> Any:
    if _kind_without_registration(cls) == "named tuple":
        return "named tuple"
    return container_kind(cls) or "registered"


def prepare_containers(records: Iterable[ContainerRecord], graphs: Iterable[GraphRecord]) -> None:
    """Register the container classes of stored graphs with torch's pytree, and refuse what would import code.

    Args:
        records: The classes, as :func:`containers_of` described them.
        graphs: The graphs.

    Raises:
        ArtifactError: A class is not here, is of another kind, or a structure refers to something else.
    """
    graphs = list(graphs)
    known = {record.name: record for record in records}
    for name in sorted(_named_containers(graphs)):
        if name not in pytree.SERIALIZED_TYPE_TO_PYTHON_TYPE:
            if name not in known:
                raise ArtifactError(f"its graphs use the container {name!r}, and it does not say what that is")
            _register(known[name])
    for graph in graphs:
        for values in (graph.inputs, graph.outputs):
            for reference in sorted(parse_structure(values.structure).imports):
                _check_reference(reference)


def _register(record: ContainerRecord) -> None:
    cls = find_imported(record.module, record.qualname)
    full_name = f"{record.module}.{record.qualname}"
    if cls is None:
        raise ArtifactError(
            f"its graphs use the class {full_name}, which is not imported; import {record.module} before loading "
            f"(nothing is imported on behalf of a file), or name a class that stands for it: "
            f"ait.register_container(cls, {record.name!r})"
        )
    if isinstance(cls, type) and _kind_without_registration(cls) == record.kind:
        register_containers(_blank(cls))
    if record.name not in pytree.SERIALIZED_TYPE_TO_PYTHON_TYPE:
        raise ArtifactError(
            f"its graphs use the class {full_name} as a {record.kind}, which it is not here; register it with "
            f"torch.utils._pytree.register_pytree_node(..., serialized_type_name={record.name!r}) before loading"
        )


def _kind_without_registration(cls: type[Any]) -> str | None:
    if issubclass(cls, tuple) and hasattr(cls, "_fields"):
        return "named tuple"
    if is_dataclass(cls):
        return "dataclass"
    return "user dict" if issubclass(cls, UserDict) else None


def _blank(cls: Any) -> Any:
    """Return an object of a container class, made without its constructor: only the class is looked at.

    ``None`` where there is no such kind, or the class derives from one that cannot be made so.
    """
    kind = _kind_without_registration(cls)
    if kind == "named tuple":
        return tuple.__new__(cls, (None,) * len(cls._fields))
    if kind == "user dict":
        blank = cls.__new__(cls)
        blank.data = {}
        return blank
    with suppress(TypeError):
        return object.__new__(cls) if kind == "dataclass" else None
    return None


def _check_reference(reference: str) -> None:
    if reference in _FACTORIES:
        return
    module, _, qualname = reference.partition(":")
    found = find_imported(module, qualname)
    if not (isinstance(found, type) and issubclass(found, enum.Enum)):
        raise ArtifactError(
            f"its graphs refer to {reference}, expected an enum of a module that is imported already, or one of "
            f"{', '.join(sorted(_FACTORIES))}; if it is an enum, import its module before loading"
        )
