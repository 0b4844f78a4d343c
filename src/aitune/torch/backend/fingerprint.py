"""What a build depends on, written so that it is the same in every process."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from importlib import metadata

from aitune import __version__
from aitune.torch.backend.backend_config import BackendConfig


def library_versions(packages: Sequence[str]) -> dict[str, str]:
    """Return the versions of aitune, torch and other packages, without importing any.

    Args:
        packages: Names of further packages; one that is not installed has the version ``"none"``.
    """
    return {"aitune": __version__, **{name: _version(name) for name in ("torch", *packages)}}


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "none"


def backend_key(name: str, config: BackendConfig, packages: Sequence[str]) -> str:
    """Return name, configuration and versions as one string that is fit for a folder name.

    Args:
        name: Registry name of the backend.
        config: Its configuration.
        packages: Packages whose versions decide what is built.
    """
    content = json.dumps([name, config.to_dict(), library_versions(packages)], sort_keys=True)
    return f"{name}-{hashlib.sha256(content.encode()).hexdigest()[:16]}"
