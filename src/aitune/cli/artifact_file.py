"""``aitune show`` and ``aitune verify``: what is in an artifact, and whether it is whole. Neither loads torch."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, NoReturn, Optional

import msgspec
import typer

from aitune.artifact.evidence import CandidateRecord, EvidenceRecord
from aitune.artifact.fit import this_machine, why_unfit
from aitune.artifact.manifest import BackendRecord, ModuleRecord, TunedGraphRecord, format_place
from aitune.artifact.reading import Artifact
from aitune.artifact.seal import Seal
from aitune.exceptions import AITuneError
from aitune.units import get_metric
from aitune.utils.printable import printable

FilePath = Annotated[Path, typer.Argument(help="The file, as ait.save wrote it.", show_default=False)]
Key = Annotated[
    Optional[Path],  # noqa: UP045 - typer reads the annotation at run time, on Python 3.10 too
    typer.Option("--key", help="PEM file of the Ed25519 public key that must have signed it."),
]


def show(
    path: FilePath, as_json: Annotated[bool, typer.Option("--json", help="Print the manifest as JSON.")] = False
) -> None:
    """Show what is in a file, where it came from, and the evidence that its builds won by."""
    with _opened(path, None) as artifact:
        if as_json:
            # Escapes all but ASCII; what msgspec writes may hold characters that steer a terminal.
            typer.echo(json.dumps(msgspec.to_builtins(artifact.manifest), indent=2))
        else:
            typer.echo("\n".join(map(printable, _describe(artifact))))


def verify(path: FilePath, key: Key = None) -> None:
    """Check every byte of a file, and its signature where a key is given. Leaves with 1 when it is not whole."""
    with _opened(path, key) as artifact:
        try:
            artifact.verify()
        except AITuneError as error:
            _leave(error)
        size = get_metric("size").format(artifact.size)
        typer.echo(f"{path} is whole: {len(artifact.manifest.members)} members, {size}; {_signed(artifact.seal, key)}")


def _opened(path: Path, key: Path | None) -> Artifact:
    try:
        return Artifact(path, None if key is None else os.fspath(key))
    except AITuneError as error:
        _leave(error)


def _leave(error: AITuneError) -> NoReturn:
    typer.echo(f"aitune: {printable(str(error))}", err=True)
    raise typer.Exit(1) from error


def _signed(seal: Seal, key: Path | None) -> str:
    if seal.signature is None:
        return "not signed"
    if key is None:
        return f"says that the key {seal.signature.public_key} signed it (not checked: give --key)"
    return f"signed with the key {seal.signature.public_key}"


def _describe(artifact: Artifact) -> Iterator[str]:
    manifest, size = artifact.manifest, get_metric("size").format
    environment = manifest.environment
    packages = "".join(f", {name} {version}" for name, version in environment.packages.items())
    yield f"{artifact.path}: aitune artifact, format {manifest.version}, {size(artifact.size)}"
    yield f"  written {manifest.created} by aitune {manifest.aitune}, {_signed(artifact.seal, None)}"
    yield f"  on {environment.processor}, {environment.system} {environment.machine}, Python {environment.python}"
    yield f"  with torch {environment.torch}{packages}"
    yield f"  members: {len(manifest.members)}, not checked (aitune verify checks them)"
    for container in manifest.containers:
        yield f"  container class: {container.module}.{container.qualname} ({container.kind})"
    for module in manifest.modules:
        yield from _describe_module(module)


def _describe_module(module: ModuleRecord) -> Iterator[str]:
    weights = "with the original weights" if module.weights is not None else "without the original weights"
    yield ""
    yield f"Module {module.name!r} ({module.class_name}) at {format_place(module.place)}, {weights}"
    for tuned in module.graphs:
        yield f"  Graph {tuned.graph.name}: {_sizes(tuned)}"
        for number, backend in enumerate(tuned.backends):
            yield f"    {'serves' if number == 0 else 'alternative'}: {_describe_backend(backend)}"
        if tuned.evidence is not None:
            yield from (f"    {line}" for line in _describe_evidence(tuned.evidence))


def _sizes(tuned: TunedGraphRecord) -> str:
    return ", ".join(f"{s.name} {s.min}..{s.max}" for s in tuned.graph.symbols) or "all sizes fixed"


def _describe_backend(backend: BackendRecord) -> str:
    size = get_metric("size").format(sum(file.size for file in backend.files))
    notes = [f"{len(backend.files)} files, {size}"] if backend.files else ["no files"]
    if backend.needs_module:
        notes.append("needs the original module")
    if backend.native_code:
        notes.append("machine code")
    reason = why_unfit(backend.requirements, this_machine())
    # Whether another device can be used is not known without torch.
    if reason is not None and backend.requirements.device_type == "cpu":
        notes.append(f"does not fit this machine: {reason}")
    return f"{backend.description} ({'; '.join(notes)})"


def _describe_evidence(evidence: EvidenceRecord) -> Iterator[str]:
    names = {candidate.key: candidate.description for candidate in evidence.candidates}
    yield f"chosen by {evidence.strategy}: {evidence.reason}"
    for compared in evidence.comparisons:
        yield (
            f"  {names.get(compared.candidate, compared.candidate)} against "
            f"{names.get(compared.opponent, compared.opponent)}: {compared.speedup:.3f}x "
            f"[{compared.low:.3f}, {compared.high:.3f}] at {compared.confidence:.1%}, {compared.verdict}"
        )
    for candidate in evidence.candidates:
        yield f"  {candidate.description}: {_describe_candidate(candidate)}"


def _describe_candidate(candidate: CandidateRecord) -> str:
    parts = ["the original" if candidate.is_baseline else candidate.status]
    if candidate.reason:
        parts.append(candidate.reason.splitlines()[0][:200])
    if candidate.relative_error is not None:
        parts.append(f"relative error {candidate.relative_error:.1e} over {candidate.compared_calls} calls")
    parts.extend(f"batch {m.batch_size}: {m.median_ms:.3f} ms" for m in candidate.measurements)
    return "; ".join(parts)
