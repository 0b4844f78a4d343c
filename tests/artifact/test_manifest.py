from __future__ import annotations

import json
from typing import Any

import pytest
from small_artifacts import GRAPH, backend, graph, manifest

from aitune.artifact.graph_record import GraphRecord
from aitune.artifact.manifest import FileRecord, PartRecord, decode_manifest, encode_manifest
from aitune.artifact.structure import parse_structure
from aitune.artifact.writing import ArtifactWriter
from aitune.exceptions import ArtifactError


def plain() -> dict[str, Any]:
    writer = ArtifactWriter()
    file = writer.add_bytes(b"content", "build/model")
    result: dict[str, Any] = json.loads(encode_manifest(manifest(writer, backend((file,)))))
    return result


def decode(data: dict[str, Any]) -> Any:
    return decode_manifest(json.dumps(data).encode())


def test_a_manifest_comes_back_equal() -> None:
    writer = ArtifactWriter()
    file = writer.add_bytes(b"content", "build/model")
    original = manifest(writer, backend((file,)))
    assert decode_manifest(encode_manifest(original)) == original


def test_a_newer_version_is_refused_before_its_fields_are_looked_at() -> None:
    with pytest.raises(ArtifactError, match=r"format version 2, this version of aitune reads 1 to 1; install a newer"):
        decode({"format": "aitune artifact", "version": 2, "what": "is this"})


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"format": "other", "version": 1}, "one of 'other'"),
        ({"version": 1}, "one of ''"),
        ({"format": "aitune artifact", "version": 0}, "never was"),
        ({"format": "aitune artifact", "version": "1"}, "cannot be read"),
    ],
)
def test_what_is_no_manifest_is_refused(data: dict[str, Any], message: str) -> None:
    with pytest.raises(ArtifactError, match=message):
        decode(data)


@pytest.mark.parametrize("text", [b"", b"{", b"[]", b"null", b"\xff\xfe", b"[" * 100_000, b'{"format":' * 50_000])
def test_text_that_is_no_json_object_is_refused(text: bytes) -> None:
    with pytest.raises(ArtifactError, match="cannot be read"):
        decode_manifest(text)


def changes() -> list[Any]:
    """Ways to change one value of a manifest into one of another type, or to add a field."""
    cases: list[Any] = []

    def walk(value: Any, path: tuple[Any, ...]) -> None:
        if "state" in path or path[-1:] in (("packages",), ("opt",)):
            return
        items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
        for key, item in items:
            if key != "state":
                cases.append(((*path, key), {"wrong": 1}))
            walk(item, (*path, key))
        if isinstance(value, dict):
            cases.append(((*path, "added"), 1))

    walk(plain(), ())
    return cases


def test_every_field_of_another_type_and_every_added_field_is_refused() -> None:
    cases = changes()
    assert len(cases) > 60
    accepted = []
    for path, wrong in cases:
        data = plain()
        target: Any = data
        for key in path[:-1]:
            target = target[key]
        target[path[-1]] = wrong
        try:
            decode(data)
        except ArtifactError:
            continue
        accepted.append(path)
    assert accepted == []


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda m: m["members"].append(m["members"][0]), "listed twice"),
        (lambda m: m["members"].append({"sha256": "0" * 64, "size": 1}), "belongs to no file"),
        (lambda m: m["members"][0].update(size=3), "refers to bytes that no member has"),
        (lambda m: m["members"][0].update(size=-1), "cannot be read"),
        (lambda m: m["members"][0].update(size=True), "cannot be read"),
        (lambda m: m["members"][0].update(sha256="0" * 64 + "\n"), "cannot be read"),
        (lambda m: m["modules"].append(m["modules"][0]), "same name or place"),
        (lambda m: m.update(modules=[]), "no module"),
        (lambda m: m["modules"][0].update(graphs=[]), "no graph"),
        (lambda m: m["modules"][0]["graphs"].append(m["modules"][0]["graphs"][0]), "two graphs of one name"),
        (lambda m: m["modules"][0]["graphs"][0].update(backends=[]), "no backend"),
        (lambda m: files(m)[0].update(path="../../x"), "the path"),
        (lambda m: files(m).append(files(m)[0]), "twice"),
        (lambda m: files(m)[0].update(parts=files(m)[0]["parts"] * 5), "would have"),
    ],
)
def test_a_manifest_that_contradicts_itself_is_refused(change: Any, message: str) -> None:
    data = plain()
    change(data)
    with pytest.raises(ArtifactError, match=message):
        decode(data)


def files(data: dict[str, Any]) -> Any:
    return data["modules"][0]["graphs"][0]["backends"][0]["files"]


def test_an_unsafe_path_cannot_even_be_made() -> None:
    with pytest.raises(ValueError, match=r"\.\./x"):
        FileRecord(path="../x", parts=(PartRecord(member="0" * 64, offset=0, size=0),))


@pytest.mark.parametrize(
    "name", ["__import__('os').system('x')", "a b", "class", "a\n", "1a", "", "x=1", "²", "a" * 300]
)
def test_parameters_are_identifiers_because_source_is_written_from_them(name: str) -> None:
    signature = {**GRAPH["signature"], "positional": [name], "required": []}
    with pytest.raises(ValueError, match=r"signature|parameters"):
        graph(signature=signature)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"symbols": []}, "uses"),
        ({"symbols": [GRAPH["symbols"][0]] * 2}, "has the symbols"),
        ({"symbols": [{**GRAPH["symbols"][0], "min": 9}]}, "min <= opt <= max"),
        ({"symbols": [{**GRAPH["symbols"][0], "opt": 100}]}, "min <= opt <= max"),
        ({"symbols": [{**GRAPH["symbols"][0], "name": "a;b"}]}, "name"),
        ({"inputs": {**GRAPH["inputs"], "leaves": []}}, "has 1 leaves, 0 are described"),
        ({"signature": {**GRAPH["signature"], "required": ["y"]}}, "speaks of parameters"),
        ({"changed_arguments": ["y"]}, "which it does not take"),
        ({"changed_arguments": ["x; import os"]}, "changed_arguments"),
        ({"signature": {**GRAPH["signature"], "num_positional_only": 2}}, "speaks of parameters"),
    ],
)
def test_a_graph_that_contradicts_itself_is_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        graph(**change)


@pytest.mark.parametrize("size", ["1", "x.__class__", 1.5, True, None, -1])
def test_sizes_are_integers_because_source_is_written_from_them(size: Any) -> None:
    leaf = {**GRAPH["inputs"]["leaves"][0], "axes": [{"size": size, "symbol": None}]}
    with pytest.raises(ValueError, match="size"):
        graph(inputs={**GRAPH["inputs"], "leaves": [leaf]})


def test_all_graphs_of_a_module_have_the_same_parameters() -> None:
    data = plain()
    other = json.loads(json.dumps(data["modules"][0]["graphs"][0]))
    other["graph"]["name"] = "graph1"
    other["graph"]["signature"]["positional"] = ["x", "y"]
    data["modules"][0]["graphs"].append(other)
    with pytest.raises(ArtifactError, match="different parameters"):
        decode(data)


LEAF = {"type": None, "context": None, "children_spec": []}


def test_a_structure_tells_what_it_names() -> None:
    node = {
        "type": "collections.defaultdict",
        "context": {
            "default_factory_module": "os", "default_factory_name": "system",
            "dict_context": [{"__enum__": True, "fqn": "a.b:Color", "name": "RED"}],
        },
        "children_spec": [LEAF],
    }  # fmt: skip
    pair = {"type": "collections.namedtuple", "context": "m.Pair", "children_spec": [LEAF, node]}
    found = parse_structure(json.dumps([1, pair]))
    assert found.leaves == 2
    assert found.containers == {"m.Pair", "collections.defaultdict"}
    assert found.imports == {"os:system", "a.b:Color"}


def test_an_enum_in_a_context_that_is_json_inside_json_is_found() -> None:
    context = json.dumps([{"__enum__": True, "fqn": "evil:Thing", "name": "x"}])
    node = {"type": "builtins.dict", "context": context, "children_spec": [LEAF]}
    assert parse_structure(json.dumps([1, node])).imports == {"evil:Thing"}


@pytest.mark.parametrize(
    "text",
    ["", "1", "[2, {}]", "[1, {}]", json.dumps([1, {**LEAF, "context": "x"}]), "[" * 100_000,
     json.dumps([1, {**LEAF, "extra": 1}]), json.dumps([1, {"type": 3, "context": "null", "children_spec": []}])],
)  # fmt: skip
def test_what_is_no_structure_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        parse_structure(text)


def test_a_structure_that_is_too_deep_is_refused() -> None:
    node: Any = LEAF
    for _ in range(200):
        node = {"type": "builtins.list", "context": "null", "children_spec": [node]}
    with pytest.raises(ValueError, match="deeper"):
        parse_structure(json.dumps([1, node]))


def test_a_graph_record_can_be_a_key() -> None:
    assert {graph(): 1}[graph()] == 1
    assert isinstance(graph(), GraphRecord)
