"""What the processor can do, as far as compilers make use of it without being asked."""

from __future__ import annotations

import platform
import re
from pathlib import Path

# The families that a compiler told to use everything (-march=native) writes into ordinary code, and AMX, which
# matrix kernels use when it is there.
_USED_BY_COMPILERS = re.compile(
    r"sse.*|ssse3|pni|avx.*|fma|f16c|bmi[12]|abm|lzcnt|popcnt|movbe|amx.*|asimd.*|sve.*|bf16|i8mm|fphp|atomics"
)


def processor_features(cpuinfo: Path = Path("/proc/cpuinfo")) -> tuple[str, ...]:
    """Return the abilities of the processor that compiled code may rely on, sorted; empty where they are not known.

    Args:
        cpuinfo: Where Linux describes the processors.
    """
    info = _first_processor(cpuinfo)
    flags = (info.get("flags") or info.get("Features") or "").split()
    return tuple(sorted({flag for flag in flags if _USED_BY_COMPILERS.fullmatch(flag)}))


def processor_name(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    """Return the name of the processor.

    Args:
        cpuinfo: Where Linux describes the processors.
    """
    return _first_processor(cpuinfo).get("model name") or platform.machine() or "unknown"


def _first_processor(cpuinfo: Path) -> dict[str, str]:
    try:
        text = cpuinfo.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return {}
    lines = (line.partition(":") for line in text.split("\n\n")[0].splitlines())
    return {key.strip(): value.strip() for key, _, value in lines}
