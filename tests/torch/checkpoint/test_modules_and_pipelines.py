"""Which module a file belongs to, pipelines, weights, containers, and what is wrong with what is given."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import UserDict, defaultdict, namedtuple
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils import _pytree as pytree
from tuned_parts import (
    Pipeline,
    StoredEncoder,
    TwoGraphs,
    answers,
    dataclass_net,
    pair_net,
    row_calls,
    rows,
    set_tuned,
    two_graphs,
)  # fmt: skip

import aitune.torch as ait
from aitune.artifact.graph_record import GraphRecord
from aitune.artifact.manifest import ContainerRecord
from aitune.artifact.reading import Artifact
from aitune.exceptions import AITuneUserInputError, ArtifactError
from aitune.testing.tiny_models import seeded, tiny_encoder, tiny_encoder_call
from aitune.torch.backend.onnx_runtime_backend import ONNXRuntimeBackend
from aitune.torch.checkpoint.container_classes import prepare_containers
from aitune.torch.checkpoint.plain_state import state_from_plain, state_to_plain
from aitune.torch.module.sample import Sample
from aitune.torch.module.sample_metadata import SampleMetadata
from aitune.torch.module.wrapper_module import Module, ModuleState

CALLS = [tiny_encoder_call(2, 5, seed=1)]


def tuned_pipeline(folder: Path) -> Pipeline:
    pipeline = Pipeline()
    set_tuned(pipeline.parts["encoder"], [(ONNXRuntimeBackend(), row_calls())], folder, "encoder")
    pipeline.head = set_tuned(pipeline.head, [(ONNXRuntimeBackend(), row_calls())], folder, "head")
    return pipeline


def test_every_module_of_a_pipeline_comes_back_in_its_place(tmp_path: Path) -> None:
    pipeline = tuned_pipeline(tmp_path / "builds")
    wanted = pipeline(rows(2, 9))
    ait.save(pipeline, tmp_path / "pipeline.ait")
    fresh = Pipeline()
    assert ait.load(fresh, tmp_path / "pipeline.ait", strict=True) is fresh
    assert torch.equal(fresh(rows(2, 9)), wanted)
    wrappers = {name: Module(part) for name, part in (("encoder", fresh.parts["encoder"]), ("head", fresh.head))}
    assert {name: sum(w.stats().served.values()) for name, w in wrappers.items()} == {"encoder": 1, "head": 1}
    assert "forward" not in vars(fresh.scale)


def test_a_pipeline_without_its_modules_is_a_dict_of_callables(tmp_path: Path) -> None:
    pipeline = tuned_pipeline(tmp_path / "builds")
    wanted = pipeline.head(rows(2, 9))
    ait.save(pipeline, tmp_path / "pipeline.ait")
    loaded = ait.load(None, tmp_path / "pipeline.ait")
    assert sorted(loaded) == ["encoder", "head"]
    assert torch.equal(loaded["head"](rows(2, 9)).hidden, wanted.hidden)


def test_modules_inside_modules_lists_and_dicts(tmp_path: Path) -> None:
    def make() -> Any:
        return {"stages": [nn.Sequential(nn.Identity(), seeded(TwoGraphs, 4)), seeded(TwoGraphs, 5)]}

    nested = make()
    set_tuned(nested["stages"][0][1], [(ONNXRuntimeBackend(), row_calls())], tmp_path / "builds", "inner")
    ait.save(nested, tmp_path / "x.ait")
    with Artifact(tmp_path / "x.ait") as artifact:
        steps = [(step.kind, step.key) for step in artifact.manifest.modules[0].place]
    assert steps == [("item", "stages"), ("item", 0), ("attribute", "1")]
    fresh = make()
    ait.load(fresh, tmp_path / "x.ait")
    assert Module(fresh["stages"][0][1]).state is ModuleState.TUNED
    with pytest.raises(ArtifactError, match=r"module at \['stages'\]\[0\]\.1, and the object itself has no"):
        ait.load(seeded(TwoGraphs, 4), tmp_path / "x.ait")


def test_when_one_module_cannot_be_loaded_none_is(tmp_path: Path) -> None:
    ait.save(tuned_pipeline(tmp_path / "builds"), tmp_path / "pipeline.ait")
    fresh = Pipeline()
    with torch.no_grad():
        fresh.head.linear.weight.add_(1)
    with pytest.raises(ArtifactError, match="'head' has other weights"):
        ait.load(fresh, tmp_path / "pipeline.ait")
    for part in (fresh.parts["encoder"], fresh.head):
        assert "forward" not in vars(part)


def test_the_first_parameter_that_differs_is_named(onnx_encoder: StoredEncoder, tmp_path: Path) -> None:
    ait.save(onnx_encoder.tuned(tmp_path / "builds"), tmp_path / "x.ait")
    other = tiny_encoder()
    other.linear = nn.Linear(16, 17)
    with pytest.raises(ArtifactError, match=r"'linear.weight' has shape \[17, 16\] and dtype float32, expected \[16"):
        ait.load(other, tmp_path / "x.ait")
    with pytest.raises(
        ArtifactError, match=r"another architecture \(aitune.testing.tiny_models.TinyEncoder\) than the"
    ):
        ait.load(two_graphs(), tmp_path / "x.ait")
    with pytest.raises(ArtifactError, match="dtype float64, expected"):
        ait.load(tiny_encoder().double(), tmp_path / "x.ait")
    more = tiny_encoder()
    more.register_buffer("extra", torch.zeros(1))
    with pytest.raises(ArtifactError, match="it has 'extra', which the tuned module had not"):
        ait.load(more, tmp_path / "x.ait")


def test_a_module_whose_forward_takes_other_arguments(tmp_path: Path) -> None:
    class Renamed(TwoGraphs):
        def forward(self, features: torch.Tensor) -> torch.Tensor:
            return super().forward(features)

    tuned = set_tuned(two_graphs(), [(ONNXRuntimeBackend(), row_calls())], tmp_path / "builds", "x")
    ait.save(tuned, tmp_path / "x.ait")
    with pytest.raises(ArtifactError, match=r"takes other parameters.*'features'.*expected \('x', 'double'\)"):
        ait.load(seeded(Renamed), tmp_path / "x.ait")


def test_other_weights_are_refused_or_replaced(onnx_encoder: StoredEncoder, tmp_path: Path) -> None:
    tuned = onnx_encoder.tuned(tmp_path / "builds")
    wanted = answers(tuned, CALLS)[0]["hidden"]
    ait.save(tuned, tmp_path / "without.ait")
    ait.save(tuned, tmp_path / "with.ait", include_original_weights=True)
    other = tiny_encoder()
    with torch.no_grad():
        other.norm.bias.add_(1)
    before = {name: value.clone() for name, value in other.state_dict().items()}
    with pytest.raises(ArtifactError, match=r"the first is 'norm\.bias'.*include_original_weights=True"):
        ait.load(other, tmp_path / "without.ait")
    assert "forward" not in vars(other)
    assert all(torch.equal(value, before[name]) for name, value in other.state_dict().items())
    loaded = ait.load(other, tmp_path / "with.ait")
    assert torch.equal(answers(loaded, CALLS)[0]["hidden"], wanted)
    assert torch.equal(other.norm.bias, tiny_encoder().norm.bias)
    # The original answers what is outside the tuned range, with the same weights.
    outside = tiny_encoder_call(5, 9)
    assert torch.equal(answers(loaded, [outside])[0]["hidden"], answers(tiny_encoder(), [outside])[0]["hidden"])


def test_weights_are_put_back_when_loading_fails_after_all(
    onnx_encoder: StoredEncoder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tuned = onnx_encoder.tuned(tmp_path / "builds")
    ait.save(tuned, tmp_path / "x.ait", include_original_weights=True)
    other = tiny_encoder()
    with torch.no_grad():
        other.norm.bias.add_(1)

    def fail(*args: Any, **kwargs: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(Module, "from_dict", fail)
    with pytest.raises(KeyboardInterrupt):
        ait.load(other, tmp_path / "x.ait")
    assert torch.equal(other.norm.bias, tiny_encoder().norm.bias + 1)
    assert "forward" not in vars(other)


def test_loading_into_a_wrapped_module_keeps_its_name(onnx_encoder: StoredEncoder, tmp_path: Path) -> None:
    ait.save(onnx_encoder.tuned(tmp_path / "builds"), tmp_path / "x.ait")
    wrapper = ait.Module(tiny_encoder(), "mine")
    assert ait.load(wrapper, tmp_path / "x.ait") is wrapper
    assert (wrapper.name, wrapper.state) == ("mine", ModuleState.TUNED)


def test_what_cannot_be_saved(onnx_encoder: StoredEncoder, tmp_path: Path) -> None:
    with pytest.raises(AITuneUserInputError, match="no tuned module in the TinyEncoder given"):
        ait.save(tiny_encoder(), tmp_path / "x.ait")
    with pytest.raises(AITuneUserInputError, match=r"wrapped modules in it: enc \(init\)"):
        ait.save([ait.Module(tiny_encoder(), "enc")], tmp_path / "x.ait")
    with pytest.raises(AITuneUserInputError, match="path must be a path"):
        ait.save(tiny_encoder(), 3)  # type: ignore[arg-type]


@pytest.mark.parametrize("lost", ["model.onnx", "model.onnx.data", "model.onnx*"])
def test_a_build_that_lost_files_is_not_saved(onnx_encoder: StoredEncoder, tmp_path: Path, lost: str) -> None:
    tuned = onnx_encoder.tuned(tmp_path / "builds")
    for file in (tmp_path / "builds").rglob(lost):
        file.unlink()
    (tmp_path / "x.ait").write_bytes(b"old")
    with pytest.raises(ArtifactError, match=r"encoder at the object itself cannot be saved: .*model.onnx.* not there"):
        ait.save(tuned, tmp_path / "x.ait", keep_alternatives=0)
    assert (tmp_path / "x.ait").read_bytes() == b"old"


def test_what_cannot_be_loaded(onnx_encoder: StoredEncoder, tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match="does not exist"):
        ait.load(tiny_encoder(), tmp_path / "x.ait")
    with pytest.raises(ArtifactError, match="is a folder"):
        ait.load(tiny_encoder(), tmp_path)
    ait.save(onnx_encoder.tuned(tmp_path / "builds"), tmp_path / "x.ait")
    with pytest.raises(AITuneUserInputError, match="verify must be one of 'full', 'lazy'"):
        ait.load(tiny_encoder(), tmp_path / "x.ait", verify=False)  # type: ignore[arg-type]
    with pytest.raises(ArtifactError, match="module at the object itself, where a int was given"):
        ait.load(3, tmp_path / "x.ait")


def test_signed_files(onnx_encoder: StoredEncoder, tmp_path: Path) -> None:
    pytest.importorskip("cryptography")
    from aitune.artifact.signing import public_bytes_of

    secret, path = bytes(range(32)), tmp_path / "x.ait"
    tuned = onnx_encoder.tuned(tmp_path / "builds")
    ait.save(tuned, path, sign=secret)
    assert ait.load(tiny_encoder(), path, verify_key=public_bytes_of(secret)).state is ModuleState.TUNED
    with pytest.raises(ArtifactError, match="is not signed with the key"):
        ait.load(tiny_encoder(), path, verify_key=public_bytes_of(bytes(32)))
    ait.save(tuned, path)
    with pytest.raises(ArtifactError, match="it is not signed"):
        ait.load(tiny_encoder(), path, verify_key=public_bytes_of(secret))
    with pytest.raises(AITuneUserInputError, match="expected an Ed25519 private key"):
        ait.save(tuned, path, sign="/nowhere")


def test_any_place_of_fsspec(onnx_encoder: StoredEncoder, tmp_path: Path) -> None:
    pytest.importorskip("fsspec")
    tuned = onnx_encoder.tuned(tmp_path / "builds")
    ait.save(tuned, "memory://pipelines/encoder.ait")
    loaded = ait.load(None, "memory://pipelines/encoder.ait")
    assert torch.equal(answers(loaded, CALLS)[0]["hidden"], answers(tuned, CALLS)[0]["hidden"])
    storage = ait.LocalTorchStorage(tmp_path)
    ait.save(tuned, "below.ait", storage)
    assert (tmp_path / "below.ait").is_file()
    assert ait.load(tiny_encoder(), "below.ait", storage).state is ModuleState.TUNED


# -- containers ------------------------------------------------------------------------------------------------------


def record_of(structure: Any) -> GraphRecord:
    from small_artifacts import GRAPH, graph

    leaf = GRAPH["outputs"]["leaves"][0]
    text = pytree.treespec_dumps(structure) if isinstance(structure, pytree.TreeSpec) else json.dumps(structure)
    return graph(outputs={"structure": text, "strict": False, "leaves": [leaf]})


LEAF = {"type": None, "context": None, "children_spec": []}


def container(name: str, context: Any) -> list[Any]:
    return [1, {"type": name, "context": context, "children_spec": [LEAF]}]


@pytest.mark.parametrize("module", ["antigravity", "this", "tests_no_such_module"])
def test_no_module_is_imported_on_behalf_of_a_file(module: str) -> None:
    sys.modules.pop(module, None)
    record = ContainerRecord(name=f"{module}.Thing", module=module, qualname="Thing", kind="dataclass")
    graph = record_of(container(record.name, "null"))
    with pytest.raises(ArtifactError, match=f"{module}.Thing, which is not imported; import {module} before"):
        prepare_containers([record], [graph])
    factory = {"default_factory_module": module, "default_factory_name": "x", "dict_context": ["a"]}
    enum_key = json.dumps([{"__enum__": True, "fqn": f"{module}:Thing", "name": "A"}])
    for structure in (container("collections.defaultdict", factory), container("builtins.dict", enum_key)):
        with pytest.raises(ArtifactError, match=f"refer to {module}:"):
            prepare_containers([], [record_of(structure)])
    assert module not in sys.modules


@pytest.mark.parametrize("reference", [("os", "system"), ("builtins", "exec"), ("builtins", "breakpoint")])
def test_a_factory_is_one_of_a_few(reference: tuple[str, str]) -> None:
    factory = dict(zip(("default_factory_module", "default_factory_name"), reference, strict=True))
    graph = record_of(container("collections.defaultdict", {**factory, "dict_context": ["a"]}))
    with pytest.raises(ArtifactError, match=":".join(reference)):
        prepare_containers([], [graph])


def test_ordinary_default_dicts_and_enums_of_this_process_are_fine() -> None:
    structure = SampleMetadata.from_outputs(defaultdict(list, a=torch.zeros(1))).structure
    prepare_containers([], [record_of(structure)])
    enum_key = json.dumps([{"__enum__": True, "fqn": f"{ModuleState.__module__}:ModuleState", "name": "TUNED"}])
    prepare_containers([], [record_of(container("builtins.dict", enum_key))])


@pytest.mark.parametrize("kind", ["dataclass", "named tuple", "user dict", "registered"])
def test_a_class_of_another_kind_is_refused(kind: Any) -> None:
    record = ContainerRecord(name="x.Y", module="subprocess", qualname="Popen", kind=kind)
    with pytest.raises(ArtifactError, match=r"as a .*, which it is not here"):
        prepare_containers([record], [record_of(container("x.Y", "null"))])
    assert subprocess.Popen not in pytree.SUPPORTED_NODES


def test_a_class_that_nobody_describes_is_refused() -> None:
    with pytest.raises(ArtifactError, match=r"uses? the container 'x\.Z'"):
        prepare_containers([], [record_of(container("x.Z", "null"))])


@dataclass
class Here:
    y: Any


class HereDict(UserDict):  # type: ignore[type-arg]
    pass


HereTuple = namedtuple("HereTuple", ["y"])


@pytest.mark.parametrize(
    ("cls", "kind", "context"),
    [(Here, "dataclass", '["y"]'), (HereDict, "user dict", '["y"]'), (HereTuple, "named tuple", None)],
)
def test_a_class_that_has_another_name_here_stands_for_the_one_in_the_file(cls: Any, kind: Any, context: Any) -> None:
    name = f"__main__.{cls.__name__}"
    record = ContainerRecord(name=name, module="__main__", qualname=cls.__name__, kind=kind)
    structure = container("collections.namedtuple", name) if context is None else container(name, context)
    with pytest.raises(ArtifactError, match=f"ait.register_container\\(cls, '{name}'\\)"):
        prepare_containers([record], [record_of(structure)])
    ait.register_container(cls, name)
    ait.register_container(cls, name)
    prepare_containers([record], [record_of(structure)])
    found = pytree.tree_unflatten([3], pytree.treespec_loads(json.dumps(structure)))
    assert type(found) is cls
    assert pytree.tree_leaves(found) == [3]
    with pytest.raises(AITuneUserInputError, match=f"the name '{name}' stands for .*{cls.__name__} already"):
        ait.register_container(dict, name)


@pytest.mark.parametrize("cls", [3, subprocess.Popen, torch.nn.Linear])
def test_what_is_no_container_cannot_be_registered(cls: Any) -> None:
    with pytest.raises(AITuneUserInputError, match=r"expects a class|is no dataclass, named tuple or UserDict class"):
        ait.register_container(cls)


class Answer(UserDict):  # type: ignore[type-arg]
    pass


class AnswerNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> Answer:
        return Answer(y=self.linear(x))


def test_a_class_inside_a_function_cannot_be_saved(tmp_path: Path) -> None:
    class Local(UserDict):  # type: ignore[type-arg]
        pass

    class LocalNet(AnswerNet):
        def forward(self, x: torch.Tensor) -> Local:  # type: ignore[override]
            return Local(y=self.linear(x))

    tuned = set_tuned(seeded(LocalNet), [(ONNXRuntimeBackend(), row_calls())], tmp_path / "builds", "local")
    with pytest.raises(ArtifactError, match=r"Local is a container .* move the class to the top level"):
        ait.save(tuned, tmp_path / "x.ait")


# -- states ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "value",
    [{"a": [1, 2.5, None, True, "x"]}, {"$float": 1}, {"$artifact": "x"}, {"$$a": {"$": 1}}, {"f": float("inf")}, {}],
)
def test_states_come_back_equal(value: Any, tmp_path: Path) -> None:
    plain = json.loads(json.dumps(state_to_plain(value), allow_nan=False))
    assert state_from_plain(plain, tmp_path) == value


@pytest.mark.parametrize("value", [{"a": object()}, {1: 2}, {"a": b"x"}, {"a": {"b": torch.zeros(1)}}])
def test_states_that_are_no_plain_data_cannot_be_saved(value: Any) -> None:
    with pytest.raises(ArtifactError, match=r"state.* expected"):
        state_to_plain(value)


@pytest.mark.parametrize("path", ["../x", "/etc/passwd", "a/../../x"])
def test_an_artifact_path_of_a_state_stays_below_its_root(path: str, tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match="must stay below"):
        state_from_plain({"artifact": {"$artifact": path}}, tmp_path)


def test_the_signature_of_a_module_that_is_absent(onnx_encoder: StoredEncoder, tmp_path: Path) -> None:
    import inspect

    ait.save(onnx_encoder.tuned(tmp_path / "builds"), tmp_path / "x.ait")
    loaded = ait.load(None, tmp_path / "x.ait")
    parameters = inspect.signature(type(loaded.original).forward).parameters
    assert [(name, p.kind.name) for name, p in parameters.items() if name != "self"] == [
        ("ids", "POSITIONAL_OR_KEYWORD"), ("mask", "POSITIONAL_OR_KEYWORD"), ("scale", "KEYWORD_ONLY"),
    ]  # fmt: skip
    sample = CALLS[0]
    by_name = loaded(mask=sample.args[1], ids=sample.args[0], **sample.kwargs)
    assert torch.equal(by_name["hidden"], answers(loaded, CALLS)[0]["hidden"])
    with pytest.raises(AITuneUserInputError, match=r"loaded without the original module.*outside|the graph takes"):
        loaded(torch.zeros(9, 9, dtype=torch.long), torch.zeros(9, 9, dtype=torch.long), scale=0.5)


def test_dataclasses_and_pairs_of_the_same_file_names(tmp_path: Path) -> None:
    for make, name in ((dataclass_net, "data"), (pair_net, "pair")):
        tuned = set_tuned(make(), [(ONNXRuntimeBackend(), row_calls())], tmp_path / "builds", name)
        ait.save(tuned, tmp_path / f"{name}.ait")
        loaded = ait.load(make(), tmp_path / f"{name}.ait")
        assert type(answers(loaded, [Sample((rows(2),), {})])[0]) is type(make()(rows(2)))
