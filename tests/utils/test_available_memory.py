from __future__ import annotations

from pathlib import Path

from aitune.utils.available_memory import available_memory


def write(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text, encoding="ascii")
    return root


def test_the_smaller_of_machine_and_container_counts(tmp_path: Path) -> None:
    machine = {"proc/meminfo": "MemTotal: 9 kB\nMemAvailable: 4 kB\n"}
    assert available_memory(write(tmp_path, machine)) == 4096
    group = {"memory.max": "2000\n", "memory.current": "1500\n", "memory.stat": "anon 1\ninactive_file 500\n"}
    write(tmp_path, {f"sys/fs/cgroup/{name}": text for name, text in group.items()})
    assert available_memory(tmp_path) == 1000


def test_no_limit_and_no_figures(tmp_path: Path) -> None:
    assert available_memory(tmp_path) is None
    write(tmp_path, {"proc/meminfo": "nonsense", "sys/fs/cgroup/memory.max": "max\n"})
    assert available_memory(tmp_path) is None
