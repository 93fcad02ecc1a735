"""Runs uv and pip of the environment that this process runs in, and finds other Pythons."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

# Of hatchling: what it writes into a wheel as the time of every file (the first that a zip can hold).
_FIXED_TIME = {"SOURCE_DATE_EPOCH": "315532800"}


def uv(*arguments: str) -> str:
    """Run uv, which is where this interpreter is; its standard output.

    Raises:
        subprocess.CalledProcessError: it failed; what it said is on standard error.
    """
    return _run(str(Path(sys.executable).parent / "uv"), *arguments)


def pip(*arguments: str) -> str:
    """Run pip; its standard output.

    Raises:
        subprocess.CalledProcessError: it failed; what it said is on standard error.
    """
    return _run(sys.executable, "-m", "pip", "--disable-pip-version-check", *arguments)


def find_python(wanted: str) -> str | None:
    """A Python of this version, such as ``3.12``: of the path, or one that pyenv has; or ``None``."""
    for candidate in _candidates(wanted):
        # Some managers of Pythons put a command in the way of one that is not chosen.
        asked = [candidate, "-c", "import sys; print('%d.%d' % sys.version_info[:2])"]
        answer = subprocess.run(asked, capture_output=True, text=True)
        if answer.returncode == 0 and answer.stdout.strip() == wanted:
            return candidate
    return None


def _candidates(wanted: str) -> Iterator[str]:
    if on_path := shutil.which(f"python{wanted}"):
        yield on_path
    versions = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv") / "versions"
    yield from (str(path) for path in sorted(versions.glob(f"{wanted}.*/bin/python{wanted}")))


def _run(*command: str) -> str:
    environment = {**os.environ, **_FIXED_TIME}
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=environment).stdout
