"""``python -m artifacts [wheel] [layer] [jobs] [--architecture arm64]``: build what is deployed, or these parts of it.

``dist/`` then is what is copied to the bucket of artifacts, file by file; SAM takes the layer from ``build/layer``.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from artifacts import glue_wheels, layer, wheel
from artifacts.pins import ROOT

__all__: list[str] = []

_DIST, _LAYER = ROOT / "dist", ROOT / "build" / "layer"
_PARTS = ("wheel", "layer", "jobs")


def _main() -> None:
    """Build the parts that were asked for; all of them anew, where none was."""
    parser = argparse.ArgumentParser(prog="python -m artifacts", description=__doc__)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(_PARTS)}; all where none is given")
    parser.add_argument("--architecture", choices=sorted(layer.PLATFORMS), default="x86_64", help="of the functions")
    given = parser.parse_args()
    if unknown := set(given.parts) - set(_PARTS):
        parser.error(f"there is no {', '.join(sorted(unknown))}; parts are {', '.join(_PARTS)}")
    parts = given.parts or _PARTS
    if not given.parts:
        # What an earlier version left there would be copied along.
        shutil.rmtree(_DIST, ignore_errors=True)
    try:
        _build(parts, given.architecture)
    except subprocess.CalledProcessError as error:
        raise SystemExit(f"{' '.join(map(str, error.cmd[:4]))} ... failed; its own words are above") from None


def _build(parts: tuple[str, ...] | list[str], architecture: str) -> None:
    layer.remove_bytecode(ROOT / "functions")
    with tempfile.TemporaryDirectory() as scratch:
        built = wheel.build(Path(scratch))
        if "wheel" in parts:
            _DIST.mkdir(exist_ok=True)
            _tell(Path(shutil.copy(built, _DIST)))
        if "jobs" in parts:
            _tell(glue_wheels.build(built, _DIST))
            for script in sorted((ROOT / "glue_jobs").glob("*.py")):
                (_DIST / "glue_jobs").mkdir(exist_ok=True)
                _tell(Path(shutil.copy(script, _DIST / "glue_jobs")))
        if "layer" in parts:
            layer.build(built, _LAYER, architecture)
            _tell(_LAYER, f"of {layer.LIMIT_BYTES >> 20}, {architecture}; {layer.load_for_a_try(_LAYER, architecture)}")


def _tell(path: Path, more: str = "") -> None:
    size = layer.size_of(path) if path.is_dir() else path.stat().st_size
    told = f"{size >> 20} MB {more}" if size >> 20 else f"{size} bytes"
    sys.stdout.write(f"{path.relative_to(ROOT)}: {told.rstrip()}\n")


if __name__ == "__main__":
    _main()
