from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from aitune.artifact.fit import MachineAbilities, this_machine, why_unfit
from aitune.artifact.manifest import RequirementsRecord
from aitune.utils.processor import processor_features, processor_name

MACHINE = MachineAbilities("Linux", "x86_64", frozenset({"avx2", "fma"}), {"cpu": (None,), "cuda": ("9.0", "8.0")})


@pytest.mark.parametrize(
    ("needed", "reason"),
    [
        ({}, None),
        ({"system": "Linux", "machine": "x86_64", "processor_features": ("avx2",)}, None),
        ({"processor_features": ("avx2", "avx512f", "amx_tile")}, "a processor with amx_tile, avx512f, which this one"),
        ({"machine": "aarch64"}, "on aarch64, this is Linux on x86_64"),
        ({"system": "Darwin"}, "for Darwin"),
        ({"device_type": "cuda"}, None),
        ({"device_type": "cuda", "compute_capability": "8.0"}, None),
        ({"device_type": "cuda", "compute_capability": "7.5"}, "capability 7.5, the devices here have 9.0, 8.0"),
        ({"device_type": "xpu"}, "no such device"),
    ],
)
def test_what_a_machine_must_have(needed: dict[str, Any], reason: str | None) -> None:
    found = why_unfit(RequirementsRecord(**needed), MACHINE)
    assert found is None if reason is None else reason in str(found)


def test_a_processor_of_which_nothing_is_known_has_nothing() -> None:
    unknown = MachineAbilities("Linux", "x86_64", frozenset())
    assert why_unfit(RequirementsRecord(processor_features=("avx2",)), unknown) is not None
    assert why_unfit(RequirementsRecord(), unknown) is None


def test_a_build_of_this_machine_fits_it() -> None:
    here = this_machine()
    needed = RequirementsRecord(
        system=here.system, machine=here.machine, processor_features=tuple(here.processor_features)
    )
    assert why_unfit(needed, here) is None


def test_the_processor_is_read_from_what_linux_says(tmp_path: Path) -> None:
    info = tmp_path / "cpuinfo"
    info.write_text("model name\t: Some CPU\nflags\t\t: fpu avx2 avx512f sha_ni fma\n\nmodel name\t: Other\n")
    assert processor_features(info) == ("avx2", "avx512f", "fma")
    assert processor_name(info) == "Some CPU"
    info.write_text("Features\t: asimd sve crypto\n")
    assert processor_features(info) == ("asimd", "sve")
    assert processor_features(tmp_path / "missing") == ()
