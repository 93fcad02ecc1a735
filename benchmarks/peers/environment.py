"""The peers' own Python environment: made once with ``uv`` from ``benchmarks/peers.txt``, kept in the work folder."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

PINS = Path(__file__).parents[1] / "peers.txt"
_TIMEOUT_S = 900
_ALONE = "--no-deps"


@dataclass(frozen=True, slots=True)
class PeersEnvironment:
    """The interpreter, and why a package is missing, by its line in the file."""

    python: Path
    missing: dict[str, str]

    def reason(self, packages: Sequence[str]) -> str | None:
        """Why one of these packages is not there."""
        for line, why in self.missing.items():
            if line.partition("==")[0] in packages:
                return f"{line} could not be installed: {why}"
        return None


def wanted_packages(text: str) -> list[str]:
    """The pins of a requirements file, without comments and options."""
    lines = (line.partition(_ALONE)[0].strip() for line in text.splitlines() if not line.startswith("#"))
    return [line for line in lines if line]


def _alone(text: str) -> set[str]:
    """The pins that are installed without what they ask for."""
    return {line.partition(_ALONE)[0].strip() for line in text.splitlines() if line.endswith(_ALONE)}


def make_environment(work: Path) -> PeersEnvironment:
    """Make the environment unless it exists; packages that cannot be installed are left out and reported."""
    pins = PINS.read_text()
    folder = work / f"peers-{hashlib.sha256(pins.encode()).hexdigest()[:12]}"
    python = folder / "bin" / "python"
    missing: dict[str, str] = {}
    if not (folder / "made").exists():
        shutil.rmtree(folder, ignore_errors=True)
        _run(["venv", "--quiet", "--python", sys.executable, str(folder)])
        alone = _alone(pins)
        together = [line for line in wanted_packages(pins) if line not in alone]
        if _install(python, together) is not None:  # find out which
            missing = {line: why for line in together if (why := _install(python, [line])) is not None}
        missing |= {line: why for line in alone if (why := _install(python, ["--no-deps", line])) is not None}
        if not missing:  # else the next run tries again
            (folder / "made").touch()
    return PeersEnvironment(python, missing)


def _install(python: Path, packages: Sequence[str]) -> str | None:
    """Why it failed."""
    return _run(["pip", "install", "--quiet", "--python", str(python), *packages], check=False)


def _run(arguments: Sequence[str], *, check: bool = True) -> str | None:
    uv = Path(sys.executable).with_name("uv")
    command = [str(uv) if uv.exists() else "uv", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
    if done.returncode == 0:
        return None
    lines = done.stderr.strip().splitlines() or ["no message"]
    if check:
        raise SystemExit(f"uv {arguments[0]} failed: {lines[-1]}")
    return lines[-1].strip()
