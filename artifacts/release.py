"""Builds all artifacts of a version into a folder, with checksums (``make release``)."""

from __future__ import annotations

import hashlib
import shutil
import sys
import tempfile
import zipfile
from pathlib import Path

from artifacts import glue_wheels, layer, wheel
from artifacts.glue_wheels import entry
from artifacts.pins import ROOT, version
from artifacts.supply_chain import SBOMS

CHECKSUMS = "SHA256SUMS"
_RELEASE = ROOT / "build" / "release"


def _main() -> None:
    """Build wheel, jobs' wheels and layers, and put the bills of materials beside them."""
    shutil.rmtree(_RELEASE, ignore_errors=True)
    _RELEASE.mkdir(parents=True)
    with tempfile.TemporaryDirectory() as scratch:
        built = wheel.build(_RELEASE)
        glue_wheels.build(built, _RELEASE)
        for architecture in sorted(layer.PLATFORMS):
            folder = Path(scratch) / architecture
            layer.build(built, folder, architecture)
            zip_folder(folder, _RELEASE / f"icekeeper-{version()}-layer-{architecture}.zip")
    for path in (*(ROOT / "glue_jobs").glob("*.py"), *SBOMS.glob(f"icekeeper-{version()}-*.cdx.json")):
        shutil.copy(path, _RELEASE)
    sys.stdout.write(write_checksums(_RELEASE).read_text())


def zip_folder(folder: Path, path: Path) -> None:
    """Pack a folder so that the same files give the same bytes."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for file in sorted(file for file in folder.rglob("*") if file.is_file()):
            packed = entry(file.relative_to(folder).as_posix())
            packed.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(packed, file.read_bytes())


def write_checksums(folder: Path) -> Path:
    """Write the digest of every file as ``sha256sum --check`` reads it; the path of the list."""
    files = sorted(path for path in folder.iterdir() if path.name != CHECKSUMS)
    lines = [f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in files]
    (folder / CHECKSUMS).write_text("".join(lines))
    return folder / CHECKSUMS


if __name__ == "__main__":
    _main()
