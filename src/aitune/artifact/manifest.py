"""The manifest of an artifact: what is in the file, as frozen records with a version.

Version history:

- 1: the first one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final, Literal

import msgspec

from aitune.artifact.evidence import EvidenceRecord
from aitune.artifact.graph_record import GraphRecord
from aitune.artifact.member_paths import why_clashing, why_unsafe
from aitune.artifact.records import Count, Name, Record, Sha256, Size, Text
from aitune.exceptions import ArtifactError

FORMAT: Final = "aitune artifact"
FORMAT_VERSION = 1
OLDEST_VERSION = 1
LARGEST_MANIFEST = 1 << 26
"""Bytes beyond which a manifest is refused."""
_MOST_COPIES = 4


class MemberRecord(Record, frozen=True, kw_only=True):
    """One stored run of bytes; its entry in the zip is named by its hash, so equal bytes are stored once."""

    sha256: Sha256
    size: Size


class PartRecord(Record, frozen=True, kw_only=True):
    """A range of a member."""

    member: Sha256
    offset: Count
    size: Size


class FileRecord(Record, frozen=True, kw_only=True):
    """A file of a build: parts of members, one behind the other."""

    path: Name
    parts: tuple[PartRecord, ...]

    def __post_init__(self) -> None:
        reason = why_unsafe(self.path)
        if reason is not None:
            raise ValueError(f"the path {self.path!r} {reason}")

    @property
    def size(self) -> int:
        """Its bytes."""
        return sum(part.size for part in self.parts)


class EnvironmentRecord(Record, frozen=True, kw_only=True):
    """The machine and the versions that a file was written with; kept to be shown and compared."""

    python: Text
    system: Text
    machine: Text
    processor: Text
    processor_features: tuple[Text, ...]
    torch: Text
    packages: dict[str, Text]
    accelerators: tuple[Text, ...] = ()


class RequirementsRecord(Record, frozen=True, kw_only=True):
    """What a machine must have before anything of a build is touched; ``None`` and empty require nothing."""

    system: Text | None = None
    machine: Text | None = None
    processor_features: tuple[Text, ...] = ()
    device_type: Text = "cpu"
    compute_capability: Text | None = None


class BackendRecord(Record, frozen=True, kw_only=True):
    """One build of one graph.

    ``state`` is what the backend gave for itself, as plain data. ``graph`` is there when it was built for other bounds
    than the graph has. ``holds_weights``: it stands for the weights of the tuning, whatever the module holds.
    """

    name: Name
    key: Name
    description: Text
    state: dict[str, Any]
    graph: GraphRecord | None = None
    files: tuple[FileRecord, ...] = ()
    native_code: bool = False
    needs_module: bool = False
    holds_weights: bool = True
    requirements: RequirementsRecord = RequirementsRecord()

    def __post_init__(self) -> None:
        reason = why_clashing(file.path for file in self.files)
        if reason is not None:
            raise ValueError(f"backend {self.name!r}: {reason}")


class TunedGraphRecord(Record, frozen=True, kw_only=True):
    """A graph with its builds, the best first."""

    graph: GraphRecord
    backends: tuple[BackendRecord, ...]
    evidence: EvidenceRecord | None = None

    def __post_init__(self) -> None:
        if not self.backends:
            raise ValueError(f"graph {self.graph.name!r} has no backend")


class TensorRecord(Record, frozen=True, kw_only=True):
    """A parameter or buffer of the module: name, shape, dtype, and the hash of its values in row-major order."""

    name: Name
    shape: tuple[Size, ...]
    dtype: Name
    sha256: Sha256 | None


class StepRecord(Record, frozen=True, kw_only=True):
    """One step on the way from a pipeline to a module in it."""

    kind: Literal["attribute", "item"]
    key: str | int


def format_place(place: Sequence[StepRecord]) -> str:
    """Write the way to a module for people.

    Args:
        place: Its steps.
    """
    steps = (f".{step.key}" if step.kind == "attribute" else f"[{step.key!r}]" for step in place)
    return "".join(steps) or "the object itself"


class ModuleRecord(Record, frozen=True, kw_only=True):
    """A tuned module."""

    name: Name
    class_name: Text
    place: tuple[StepRecord, ...]
    tensors: tuple[TensorRecord, ...]
    graphs: tuple[TunedGraphRecord, ...]
    weights: FileRecord | None = None

    def __post_init__(self) -> None:
        if not self.graphs:
            raise ValueError(f"module {self.name!r} has no graph")
        names = [tuned.graph.name for tuned in self.graphs]
        if len(set(names)) != len(names):
            raise ValueError(f"module {self.name!r} has two graphs of one name: {names}")
        if len({graph.signature.parameters for graph in self.all_graphs}) != 1:
            raise ValueError(f"the graphs of module {self.name!r} have different parameters")

    @property
    def backends(self) -> list[BackendRecord]:
        """Every build."""
        return [backend for tuned in self.graphs for backend in tuned.backends]

    @property
    def all_graphs(self) -> list[GraphRecord]:
        """The graphs, and those that single builds have for their own."""
        builds = [backend.graph for backend in self.backends]
        return [*(tuned.graph for tuned in self.graphs), *(graph for graph in builds if graph is not None)]


class ContainerRecord(Record, frozen=True, kw_only=True):
    """A container class that arguments or outputs are made of and that torch does not know by itself."""

    name: Name
    module: Name
    qualname: Name
    kind: Literal["dataclass", "named tuple", "user dict", "registered"]


class Manifest(Record, frozen=True, kw_only=True):
    """Everything in an artifact but the bytes of its members."""

    format: Literal["aitune artifact"]
    version: int
    created: Text
    aitune: Text
    environment: EnvironmentRecord
    members: tuple[MemberRecord, ...]
    modules: tuple[ModuleRecord, ...]
    containers: tuple[ContainerRecord, ...] = ()

    def __post_init__(self) -> None:
        if not self.modules:
            raise ValueError("there is no module in it")
        names = [module.name for module in self.modules]
        places = [module.place for module in self.modules]
        if len(set(names)) != len(names) or len(set(places)) != len(places):
            raise ValueError("two modules have the same name or place")
        _check_parts(self)

    @property
    def files(self) -> Iterator[FileRecord]:
        """Every file of every module."""
        for module in self.modules:
            if module.weights is not None:
                yield module.weights
            for backend in module.backends:
                yield from backend.files


def _check_parts(manifest: Manifest) -> None:
    sizes = {member.sha256: member.size for member in manifest.members}
    if len(sizes) != len(manifest.members):
        raise ValueError("a member is listed twice")
    stored = sum(sizes.values())
    used: set[str] = set()
    for file in manifest.files:
        for part in file.parts:
            if part.member not in sizes or part.offset + part.size > sizes[part.member]:
                raise ValueError(f"file {file.path!r} refers to bytes that no member has")
            used.add(part.member)
        if file.size > _MOST_COPIES * stored:
            raise ValueError(f"file {file.path!r} would have {file.size} bytes, all members have {stored}")
    if used != set(sizes):
        raise ValueError("a member belongs to no file")


class _Version(msgspec.Struct):
    format: str = ""
    version: int = 0


# Made here and not at the first use, where somebody waits for a file.
_version_decoder = msgspec.json.Decoder(_Version)
_manifest_decoder = msgspec.json.Decoder(Manifest)


def encode_manifest(manifest: Manifest) -> bytes:
    """Write a manifest as JSON.

    Args:
        manifest: The manifest.

    Raises:
        ArtifactError: It holds something that has no plain form, or could not be read again.
    """
    try:
        text = msgspec.json.format(msgspec.json.encode(manifest), indent=1)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise ArtifactError(f"the tuned module cannot be stored: {error}") from error
    decode_manifest(text)
    return text


def decode_manifest(text: bytes) -> Manifest:
    """Read and check a manifest.

    Args:
        text: JSON.

    Raises:
        ArtifactError: It is no manifest, contradicts itself, or is of a version that cannot be read here.
    """
    try:
        found = _version_decoder.decode(text)
        if found.format != FORMAT:
            raise ArtifactError(f"its manifest is one of {found.format!r}, expected {FORMAT!r}")
        if found.version > FORMAT_VERSION:
            raise ArtifactError(
                f"it has format version {found.version}, this version of aitune reads {OLDEST_VERSION} to "
                f"{FORMAT_VERSION}; install a newer aitune (pip install -U aitune-open)"
            )
        if found.version < OLDEST_VERSION:
            raise ArtifactError(f"it has format version {found.version}, which never was; it is damaged")
        return _manifest_decoder.decode(text)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ArtifactError(f"its manifest cannot be read: {error}") from error
