from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from aitune.exceptions import AITuneEnvironmentError, AITuneUserInputError, ArtifactError, BackendUnavailableError
from aitune.torch.backend import registry as registry_module
from aitune.torch.backend.registry import BackendEntry, BackendRegistry, override_registry, registry

CPU = torch.device("cpu")
MISSING = BackendEntry("Missing", "no.such.module:Backend", ("no_such_package",), extra="nothing")


def test_every_entry_says_what_its_class_says() -> None:
    assert [entry.name for entry in registry.entries] == [
        "TorchEager",
        "ONNXRuntime",
        "OpenVINO",
        "TorchInductorJit",
        "TorchInductorAot",
        "TorchAO",
    ]
    for entry in registry.entries:
        backend = registry.load(entry.name)()
        assert backend.name == entry.name
        assert backend.device_types == entry.device_types
        assert backend.required_packages == entry.required_packages
        assert backend.extra == entry.extra


def test_asking_what_is_available_imports_no_backend() -> None:
    code = """
import sys, torch
before = set(sys.modules)
from aitune.torch.backend.registry import registry
for entry in registry.entries:
    registry.unavailable_reason(entry.name, torch.device("cpu"))
new = {name.partition(".")[0] for name in set(sys.modules) - before}
print(sorted(new & {"onnx", "onnxruntime", "onnxscript", "openvino"}))
heavy = ("torch._dynamo", "torch._inductor", "torch.onnx")
print([name for name in set(sys.modules) - before if name.startswith(heavy)])
"""
    child = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert child.stdout.split("\n")[:2] == ["[]", "[]"]


def test_missing_package_is_named_with_the_command_that_installs_it() -> None:
    found = BackendRegistry([MISSING, BackendEntry("Own", "a:B", ("no_such_package",))])
    assert found.unavailable_reason("Missing", CPU) == (
        'no_such_package not installed; run: pip install "aitune-open[nothing]"'
    )
    assert found.unavailable_reason("Own", CPU) == "no_such_package not installed; run: pip install no_such_package"


def test_wrong_device_is_named() -> None:
    assert registry.unavailable_reason("OpenVINO", torch.device("cuda")) == "runs on cpu, not on cuda"
    assert registry.unavailable_reason("TorchEager", CPU) is None


def test_missing_compiler_is_named_on_a_cpu_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("CXX", raising=False)
    assert "no C++ compiler found" in str(registry.unavailable_reason("TorchInductorAot", CPU))
    assert "no C++ compiler found" in str(registry.unavailable_reason("TorchInductorJit", CPU))
    assert registry.unavailable_reason("TorchEager", CPU) is None
    assert registry.unavailable_reason("TorchInductorAot", torch.device("cuda")) is None


def test_compiler_named_in_the_environment_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.setenv("CXX", sys.executable)  # any program will do: it is looked for, not run
    assert registry_module.find_cpp_compiler() == sys.executable
    assert registry.unavailable_reason("TorchInductorAot", CPU) is None


def test_unknown_name_lists_the_known_ones() -> None:
    for ask in (registry.load, registry.entry, lambda name: registry.unavailable_reason(name, CPU)):
        with pytest.raises(AITuneUserInputError, match="no backend named 'Onnx'; known backends: TorchEager"):
            ask("Onnx")


def test_one_name_stands_for_one_backend() -> None:
    found = BackendRegistry([MISSING])
    found.register(MISSING)
    with pytest.raises(AITuneUserInputError, match=r"stands for no\.such\.module:Backend already"):
        found.register(BackendEntry("Missing", "other:Backend"))
    with pytest.raises(AITuneUserInputError, match=r"package\.module:Class"):
        BackendEntry("Bad", "no_colon")


@pytest.mark.parametrize(
    "location", ["no.such.module:Backend", "aitune.exceptions:Nothing", "aitune.exceptions:AITuneError"]
)
def test_what_is_no_backend_is_refused(location: str) -> None:
    with pytest.raises(BackendUnavailableError):
        BackendRegistry([BackendEntry("Bad", location)]).load("Bad")


def test_whatever_its_module_raises_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "does_not_load.py").write_text("raise OSError('libown.so: cannot open shared object file')")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(BackendUnavailableError, match=r"backend Own cannot be imported: OSError: libown\.so: cannot"):
        BackendRegistry([BackendEntry("Own", "does_not_load:Own")]).load("Own")


def test_restore_loads_registered_backends_only() -> None:
    for name in ("os:system", "Missing", None, 3):
        with pytest.raises(ArtifactError, match="not registered"):
            registry.restore(None, {"backend": name})
    with pytest.raises(AITuneEnvironmentError, match=r"aitune-open\[nothing\]"):
        BackendRegistry([MISSING]).restore(None, {"backend": "Missing"})


def test_override_holds_inside_the_block_alone() -> None:
    before = registry.entries
    with override_registry(BackendRegistry([MISSING])) as inside:
        assert inside is registry
        assert registry.entries == (MISSING,)
        registry.register(BackendEntry("Another", "a:B"))
    assert registry.entries == before
