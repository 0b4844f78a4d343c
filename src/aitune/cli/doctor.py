"""``aitune doctor``: what this machine can run, and what is missing."""

from __future__ import annotations

import dataclasses
import json
from typing import TYPE_CHECKING, Annotated

import typer

from aitune.units import MISSING, get_metric
from aitune.utils.error_text import error_line

if TYPE_CHECKING:
    import torch

    from aitune.torch.report.environment import CacheFolder, Environment


@dataclasses.dataclass(frozen=True)
class BackendAvailability:
    """Whether one backend can run here.

    Args:
        name: Name in the registry.
        available: Whether it can.
        reason: Why not, and the command that helps.
    """

    name: str
    available: bool
    reason: str | None


@dataclasses.dataclass(frozen=True)
class Findings:
    """Everything that ``aitune doctor`` looks at.

    Args:
        environment: The machine and the versions.
        cache: The folder for builds and samples.
        device: Kind of device that the backends were asked about.
        backends: The backends of the registry, in its order.
    """

    environment: Environment
    cache: CacheFolder
    device: str
    backends: tuple[BackendAvailability, ...]


def doctor(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON for programs.")] = False,
    device: Annotated[str, typer.Option(help="Device to ask the backends about, such as cpu or cuda.")] = "cpu",
) -> None:
    """Show what this machine can run and what is missing. Leaves with 1 when torch cannot be used."""
    try:
        import torch
    except (ImportError, OSError) as error:
        _show_broken_torch(error, as_json)
        raise typer.Exit(1) from error
    try:
        asked = torch.device(device)
    except RuntimeError as error:
        raise typer.BadParameter(f"{device!r} is no device of torch: {error}", param_hint="--device") from error
    findings = look(asked.type)
    typer.echo(json.dumps(dataclasses.asdict(findings), indent=2) if as_json else describe(findings))


def look(device: str) -> Findings:
    """Gather the findings.

    Args:
        device: Kind of device to ask the backends about.
    """
    import torch

    from aitune.torch.backend.registry import registry
    from aitune.torch.config import config
    from aitune.torch.report.environment import gather_environment, inspect_cache_folder

    asked = torch.device(device)
    absent = _why_absent(asked)
    reasons = {entry.name: registry.unavailable_reason(entry.name, asked) or absent for entry in registry.entries}
    return Findings(
        environment=gather_environment(),
        cache=inspect_cache_folder(config.resolve_cache_dir()),
        device=device,
        backends=tuple(BackendAvailability(name, reason is None, reason) for name, reason in reasons.items()),
    )


def _why_absent(device: torch.device) -> str | None:
    """Say why nothing can run on a device of this machine; ``None`` when something can."""
    import torch

    try:
        torch.empty(0, device=device)
    except Exception as error:
        # A build of torch without the device raises something else than one that finds no driver.
        return f"{device.type} cannot be used here: {error_line(error)}"
    return None


def describe(findings: Findings) -> str:
    """Write the findings for people.

    Args:
        findings: What was found.
    """
    environment, cache = findings.environment, findings.cache
    size = get_metric("size").format
    state = "writable" if cache.writable else "NOT writable: set AITUNE_CACHE_DIR to a folder that is"
    rows = [
        ("Python", f"{environment.python} on {environment.platform}"),
        ("torch", environment.torch),
        ("processor", environment.processor),
        ("features", ", ".join(environment.processor_features) or MISSING),
        ("cores", f"{environment.cores} usable, torch uses {environment.threads} threads"),
        ("memory", size(environment.memory_bytes)),
        ("accelerators", ", ".join(environment.accelerators) or "none"),
        ("C++ compiler", environment.compiler or "NOT found: torch Inductor cannot build for a CPU"),
        ("cache", f"{cache.path} ({size(cache.size_bytes) if cache.exists else 'not made yet'}, {state})"),
        ("packages", ", ".join(f"{name} {version}" for name, version in environment.packages.items()) or "none"),
    ]
    lines = _aligned(rows)
    lines += ["", f"Backends on {findings.device}:"]
    states = [(backend.name, "available" if backend.available else f"left out: {backend.reason}")
              for backend in findings.backends]  # fmt: skip
    return "\n".join([*lines, *(f"  {line}" for line in _aligned(states))])


def _aligned(rows: list[tuple[str, str]]) -> list[str]:
    width = max((len(name) for name, _ in rows), default=0)
    return [f"{name:<{width}}  {text}" for name, text in rows]


def _show_broken_torch(error: Exception, as_json: bool) -> None:
    message = f"torch cannot be imported: {error}; install it with: pip install torch"
    typer.echo(json.dumps({"error": message}) if as_json else message, err=not as_json)
