"""What builds cost on this machine before, kept in a small file of the cache folder."""

from __future__ import annotations

import json
import logging
import math
import os
import tempfile
from contextlib import suppress
from pathlib import Path

logger = logging.getLogger(__name__)

FILE_NAME = "build_costs.json"

_UP, _DOWN = 0.5, 0.2
"""Weight of a new figure. One that is lower counts less: compilers have caches, and the next model is not in them."""


class CostHistory:
    """How many times as long as predicted each kind of build took; read once, written after every build.

    Two processes may write at once: the file is always whole, and the later one wins. A file that cannot be read is as
    good as none.

    Args:
        path: The file; ``None`` keeps nothing beyond this object.
    """

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self._factors: dict[str, float] | None = None

    def factor(self, *names: str) -> float:
        """Return the factor of the first of some names that is known, 1 when none is.

        Args:
            names: The candidate, then what is more general: its backend.
        """
        known = self._loaded()
        return next((known[name] for name in names if name in known), 1.0)

    def learn(self, factor: float, *names: str) -> None:
        """Take in what a build took.

        Args:
            factor: Its time over the predicted one, above 0.
            names: What it holds for; see :meth:`factor`.
        """
        known = self._loaded()
        for name in names:
            before = known.get(name)
            if before is None:
                known[name] = factor
                continue
            weight = _UP if factor > before else _DOWN
            known[name] = math.exp((1.0 - weight) * math.log(before) + weight * math.log(factor))
        self._store(known)

    def _loaded(self) -> dict[str, float]:
        if self._factors is None:
            self._factors = _read(self._path) if self._path is not None else {}
        return self._factors

    def _store(self, factors: dict[str, float]) -> None:
        if self._path is None:
            return
        temporary: Path | None = None
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile("w", dir=self._path.parent, prefix=".costs-", delete=False) as file:
                temporary = Path(file.name)
                json.dump(factors, file, indent=1, sort_keys=True)
            os.replace(temporary, self._path)
        except OSError as error:
            # Only a prediction gets worse by it.
            logger.debug("what builds cost could not be kept in %s: %s", self._path, error)
            if temporary is not None:
                with suppress(OSError):
                    temporary.unlink()


def _read(path: Path) -> dict[str, float]:
    try:
        stored = json.loads(path.read_text(), parse_int=float)
    except (OSError, ValueError, RecursionError):
        return {}
    if not isinstance(stored, dict):
        return {}
    return {name: factor for name, factor in stored.items() if isinstance(factor, float) and 0.0 < factor < math.inf}
