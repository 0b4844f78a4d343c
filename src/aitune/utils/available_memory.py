"""How much memory this process may still take."""

from __future__ import annotations

from pathlib import Path


def available_memory(root: Path = Path("/")) -> int | None:
    """Return the bytes that can be taken without swapping, within the limit of the container.

    Args:
        root: Where ``proc`` and ``sys`` are.

    Returns:
        Bytes; ``None`` where the system does not say.
    """
    found = [size for size in (_of_the_machine(root), _of_the_container(root)) if size is not None]
    return min(found, default=None)


def _of_the_machine(root: Path) -> int | None:
    try:
        lines = (root / "proc/meminfo").read_text(encoding="ascii").splitlines()
        line = next(line for line in lines if line.startswith("MemAvailable:"))
        return int(line.split()[1]) * 1024
    except (OSError, ValueError, IndexError, StopIteration):
        return None


def _of_the_container(root: Path) -> int | None:
    group = root / "sys/fs/cgroup"
    try:
        limit = int((group / "memory.max").read_text(encoding="ascii"))
        used = int((group / "memory.current").read_text(encoding="ascii"))
        # Pages of files are given back when memory is wanted.
        pages = dict(line.split() for line in (group / "memory.stat").read_text(encoding="ascii").splitlines())
        return max(0, limit - used + int(pages.get("inactive_file", 0)))
    except (OSError, ValueError):
        return None
