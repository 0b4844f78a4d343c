import os
import subprocess
import sys
from dataclasses import replace
from importlib import metadata
from pathlib import Path

import pytest
import torch

from aitune.torch.report.environment import (
    Environment,
    gather_environment,
    inspect_cache_folder,
    installed_versions,
)


def test_this_machine_is_described_truly() -> None:
    environment = gather_environment()
    assert environment.python == ".".join(map(str, sys.version_info[:3]))
    assert environment.torch == torch.__version__
    assert type(environment.torch) is str
    assert environment.threads == torch.get_num_threads()
    assert 1 <= environment.cores <= (os.cpu_count() or 1)
    assert environment.processor
    assert environment.processor_features
    assert environment.memory_bytes is None or environment.memory_bytes > 2**20
    assert environment.compiler is None or Path(environment.compiler).exists()


def test_versions_are_those_of_installed_packages_only() -> None:
    assert installed_versions(("torch", "no-such-distribution")) == {"torch": metadata.version("torch")}


def test_gathering_imports_no_package_of_a_backend() -> None:
    code = (
        "import sys; from aitune.torch.report.environment import gather_environment; gather_environment(); "
        "print([n for n in ('onnx', 'onnxruntime', 'openvino', 'torchao', 'transformers', 'rich', 'torch._inductor') "
        "if n in sys.modules])"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"


def test_the_description_leaves_out_what_is_not_known(environment: Environment) -> None:
    assert environment.describe() == (
        "Some Processor; 4 cores, 2 threads; 8.0 GiB; Python 3.11.7; torch 2.13.0, onnxruntime 1.32.0"
    )
    bare = replace(environment, memory_bytes=None, packages={}, accelerators=("Some GPU",))
    assert bare.describe() == "Some Processor; 4 cores, 2 threads; Some GPU; Python 3.11.7; torch 2.13.0"


def test_the_size_of_the_cache_counts_every_file(tmp_path: Path) -> None:
    (tmp_path / "module" / "graph0").mkdir(parents=True)
    (tmp_path / "module" / "graph0" / "model.onnx").write_bytes(b"x" * 1000)
    (tmp_path / "note").write_bytes(b"y" * 24)
    folder = inspect_cache_folder(tmp_path)
    assert (folder.path, folder.exists, folder.writable, folder.size_bytes) == (str(tmp_path), True, True, 1024)


def test_a_cache_that_is_not_there_yet_is_not_made(tmp_path: Path) -> None:
    wanted = tmp_path / "a" / "b"
    folder = inspect_cache_folder(wanted)
    assert (folder.exists, folder.writable, folder.size_bytes) == (False, True, 0)
    assert not (tmp_path / "a").exists()


def test_a_file_in_the_way_of_the_cache_is_not_writable(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    assert not inspect_cache_folder(tmp_path / "file" / "cache").writable
    assert not inspect_cache_folder(tmp_path / "file").writable


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="the superuser writes everywhere")
def test_a_folder_without_permission_is_not_writable(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    try:
        assert not inspect_cache_folder(tmp_path / "cache").writable
    finally:
        tmp_path.chmod(0o700)
