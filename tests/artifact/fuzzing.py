"""Ways to change an artifact: of its bytes, of its zip, of its manifest."""

from __future__ import annotations

import hashlib
import io
import json
import random
import struct
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from aitune.artifact.zip_layout import Entry, directory, local_header, place

Entries = list[tuple[str, bytes]]


def entries_of(path: Path) -> Entries:
    with zipfile.ZipFile(path) as file:
        return [(name, file.read(name)) for name in file.namelist()]


def pack(entries: Entries) -> bytes:
    """Lay entries out as an artifact has them, whatever they are."""
    placed = place([Entry(name, len(content), zlib.crc32(content)) for name, content in entries])
    bodies = (local_header(each) + content for each, (_, content) in zip(placed, entries, strict=True))
    return b"".join(bodies) + directory(placed)


def resealed(entries: Entries) -> Entries:
    """Give a changed manifest a seal of its own, as somebody would who knows the format."""
    manifest = dict(entries)["manifest.json"]
    seal = json.dumps({"manifest_sha256": hashlib.sha256(manifest).hexdigest(), "signature": None}).encode()
    return [(name, seal if name == "seal.json" else content) for name, content in entries]


def flip_bytes(content: bytes, entries: Entries, rng: random.Random) -> bytes:
    changed = bytearray(content)
    for _ in range(rng.choice((1, 1, 1, 2, 8, 64))):
        changed[rng.randrange(len(changed))] ^= rng.randrange(1, 256)
    return bytes(changed)


def cut_or_extend(content: bytes, entries: Entries, rng: random.Random) -> bytes:
    middle = rng.randrange(len(content))
    return rng.choice(
        (content[:middle], content[middle:], content + rng.randbytes(rng.randrange(1, 50)),
         rng.randbytes(rng.randrange(1, 50)) + content, content[:middle] + content[middle + rng.randrange(1, 30) :],
         content + content)
    )  # fmt: skip


def change_entries(content: bytes, entries: Entries, rng: random.Random) -> bytes:
    changed = list(entries)
    index = rng.randrange(len(changed))
    kind = rng.randrange(6)
    if kind == 0:
        del changed[index]
    elif kind == 1 and len(changed) > 1:
        other = rng.randrange(len(changed))
        (a, x), (b, y) = changed[index], changed[other]
        changed[index], changed[other] = (a, y), (b, x)
        if x == y:
            return flip_bytes(content, entries, rng)
    elif kind == 2:
        names = ("../../x", "/etc/x", "members/../../x", "x\\..\\y", "members/" + "0" * 64, "manifest.json", "C:x")
        changed[index] = (rng.choice(names), changed[index][1])
        if changed == entries:
            return flip_bytes(content, entries, rng)
    elif kind == 3:
        changed.append(changed[index])
    elif kind == 4:
        changed.insert(index, (f"extra{rng.randrange(9)}", rng.randbytes(10)))
    else:
        return odd_zip(entries, rng)
    return pack(changed)


def odd_zip(entries: Entries, rng: random.Random) -> bytes:
    """A zip bomb, a link, or lying sizes, as other programs would write them."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as file:
        for name, content in entries:
            info = zipfile.ZipInfo(name)
            kind = rng.randrange(4)
            if kind == 0:
                info.compress_type = zipfile.ZIP_DEFLATED
                file.writestr(info, bytes(5_000_000))
            elif kind == 1:
                info.external_attr = 0o120777 << 16
                file.writestr(info, b"/etc/passwd")
            else:
                file.writestr(info, content)
    content = bytearray(buffer.getvalue())
    if rng.random() < 0.5:
        at = content.rindex(b"PK\1\2")
        struct.pack_into("<2L", content, at + 20, rng.choice((0, 1 << 31, 0xFFFFFFFF)), 1 << 31)
    return bytes(content)


WRONG: tuple[Any, ...] = (
    None, True, -1, 0, 1 << 70, 1.5, "", "x", "../../x", "__import__('os').system('touch /tmp/x')", [], {}, [[]],
    {"$artifact": "../../../etc"}, {"$artifact": "/etc/passwd"}, "os:system", "a\nb", "9" * 5000,
)  # fmt: skip


def change_manifest(content: bytes, entries: Entries, rng: random.Random) -> bytes:
    manifest = json.loads(dict(entries)["manifest.json"])
    spots: list[tuple[Any, Any]] = []

    def walk(value: Any) -> None:
        items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
        for key, item in items:
            # The value of a constant output is of any type, and whoever may write the seal may choose it: that is what
            # signatures are for.
            if key not in ("plain", "float"):
                spots.append((value, key))
            walk(item)

    walk(manifest)
    parent, key = rng.choice(spots)
    if rng.random() < 0.2:
        del parent[key]
    else:
        wrong = rng.choice(WRONG)
        if isinstance(parent[key], int) and rng.random() < 0.3:
            # A size that lies.
            wrong = parent[key] + rng.choice((1, -1, 1000, 1 << 40))
        parent[key] = wrong
    text = json.dumps(manifest).encode()
    changed = [(name, text if name == "manifest.json" else body) for name, body in entries]
    return pack(resealed(changed) if rng.random() < 0.8 else changed)


MUTATIONS: tuple[Callable[[bytes, Entries, random.Random], bytes], ...] = (
    flip_bytes, cut_or_extend, change_entries, change_manifest,
)  # fmt: skip
