"""The locks: each package of what is deployed, with its version and the hashes of all its files (``make lock``).

A version alone is whatever an index serves under its name; a file whose hash is not recorded is not installed
(rule: deploy-pinned-packages).  ``constraints.txt`` and Glue's own list decide the versions, a lock records what they
come to.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from artifacts.installers import uv
from artifacts.pins import CONSTRAINTS, GLUE_PACKAGES, ROOT, pins_for_glue, read_pins

LAYER_PYTHON = "3.12"
GLUE_PYTHON = "3.11"
GLIBC = 28
"""The newest glibc 2.x of wheels: PyArrow needs 2.28; Lambda's Python 3.12 and Glue 5.1 have 2.34."""

_FOLDER = Path(__file__).parent / "locked"
LAYER_LOCK = _FOLDER / "layer.txt"
GLUE_LOCK = _FOLDER / "glue.txt"
BUILD_LOCK = _FOLDER / "build.txt"
"""What builds: uv, and the backend that makes the package's wheel."""
SUPPLY_LOCK = _FOLDER / "supply.txt"
"""What makes bills of materials and asks for known vulnerabilities (:mod:`artifacts.supply_chain`)."""
LOCKS = (LAYER_LOCK, GLUE_LOCK, BUILD_LOCK, SUPPLY_LOCK)
SUPPLY_PACKAGES = ("cyclonedx-bom==7.5.0", "pip-audit==2.10.1")
"""They need other versions than ours, so they have an environment of their own."""

_HEADER = "# Written by: make lock\n"


def lock(folder: Path = _FOLDER) -> None:
    """Write all locks anew.

    Raises:
        subprocess.CalledProcessError: the pinned versions do not fit together, or an index cannot be asked.
    """
    package = str(ROOT / "pyproject.toml")
    with tempfile.TemporaryDirectory() as scratch:
        for_glue, to_build, to_audit = (Path(scratch) / name for name in ("glue.txt", "build.in", "supply.in"))
        pins = pins_for_glue(read_pins(CONSTRAINTS), read_pins(GLUE_PACKAGES))
        for_glue.write_text("".join(f"{name}=={pinned}\n" for name, pinned in sorted(pins.items())))
        to_build.write_text("uv\nhatchling\n")
        to_audit.write_text("\n".join(SUPPLY_PACKAGES))
        _lock(folder / LAYER_LOCK.name, CONSTRAINTS, LAYER_PYTHON, "--extra", "functions", package)
        _lock(folder / GLUE_LOCK.name, for_glue, GLUE_PYTHON, package)
        _lock(folder / BUILD_LOCK.name, CONSTRAINTS, GLUE_PYTHON, str(to_build))
        _lock(folder / SUPPLY_LOCK.name, to_audit, GLUE_PYTHON, str(to_audit))


def _lock(path: Path, constraints: Path, python: str, *wanted: str) -> None:
    target = ["--python-version", python, "--python-platform", f"x86_64-manylinux_2_{GLIBC}"]
    told = ["--quiet", "--no-header", "--no-annotate", "--generate-hashes", "--only-binary", ":all:"]
    path.write_text(_HEADER + uv("pip", "compile", *told, *target, "--constraints", str(constraints), *wanted))


if __name__ == "__main__":
    lock()
