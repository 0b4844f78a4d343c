"""Writes one file over and over until it is killed; prints a line when it has begun.

``python writing_run.py PATH``: the contents take turns, each a byte many times over.
"""

from __future__ import annotations

import sys
from pathlib import Path

from small_artifacts import backend, manifest

from aitune.artifact.storage import LocalTorchStorage
from aitune.artifact.writing import ArtifactWriter


def main(path: str) -> None:
    print("writing", flush=True)
    for number in range(1_000_000):
        writer = ArtifactWriter()
        file = writer.add_bytes(bytes([number % 256]) * 3_000_000, "build/model")
        made = manifest(writer, backend((file,)))
        LocalTorchStorage().store(path, lambda stream, writer=writer, made=made: writer.write(stream, made))


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent))
    main(sys.argv[1])
