"""Whether a build can run on a machine, decided from the manifest alone, before anything of the build is touched."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from dataclasses import dataclass, field

from aitune.artifact.manifest import RequirementsRecord
from aitune.utils.processor import processor_features


@dataclass(frozen=True)
class MachineAbilities:
    """What a machine has.

    Args:
        system: Operating system, as ``platform.system`` names it.
        machine: Architecture, as ``platform.machine`` names it.
        processor_features: Abilities of the processor; empty where they are not known.
        compute_capabilities: Kinds of device that can be used -> compute capability of each device, ``None`` where
            the kind has no such figure.
    """

    system: str
    machine: str
    processor_features: frozenset[str]
    compute_capabilities: Mapping[str, tuple[str | None, ...]] = field(default_factory=lambda: {"cpu": (None,)})


def this_machine(compute_capabilities: Mapping[str, tuple[str | None, ...]] | None = None) -> MachineAbilities:
    """Describe the machine that this runs on.

    Args:
        compute_capabilities: Devices beside the CPU, which only who has torch knows.
    """
    return MachineAbilities(
        platform.system(),
        platform.machine(),
        frozenset(processor_features()),
        {"cpu": (None,), **(compute_capabilities or {})},
    )


def why_unfit(needed: RequirementsRecord, machine: MachineAbilities) -> str | None:
    """Say why a build cannot run on a machine; ``None`` when nothing speaks against it.

    Args:
        needed: What the build requires.
        machine: The machine.
    """
    if needed.system not in (None, machine.system) or needed.machine not in (None, machine.machine):
        return f"it was compiled for {needed.system} on {needed.machine}, this is {machine.system} on {machine.machine}"
    missing = sorted(set(needed.processor_features) - machine.processor_features)
    if missing:
        return f"it was compiled for a processor with {', '.join(missing)}, which this one lacks"
    here = machine.compute_capabilities.get(needed.device_type)
    if not here:
        return f"it runs on {needed.device_type}, and no such device can be used here"
    if needed.compute_capability is not None and needed.compute_capability not in here:
        found = ", ".join(str(capability) for capability in here)
        return f"it was compiled for compute capability {needed.compute_capability}, the devices here have {found}"
    return None
