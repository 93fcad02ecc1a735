"""Builds the package's wheel."""

from __future__ import annotations

from pathlib import Path

from artifacts.installers import uv
from artifacts.locks import BUILD_LOCK
from artifacts.pins import ROOT, version


def wheel_name() -> str:
    """The file name of the wheel."""
    return f"icekeeper-{version()}-py3-none-any.whl"


def build(folder: Path, *, sources: Path = ROOT) -> Path:
    """Build the wheel of these sources into ``folder``; its path.

    Raises:
        subprocess.CalledProcessError: it could not be built.
    """
    # The build's own tools are locked, too (rule: deploy-pinned-packages): their version stands in the wheel.
    locked = ["--build-constraints", str(BUILD_LOCK), "--require-hashes"]
    uv("build", "--quiet", "--wheel", *locked, "--out-dir", str(folder), str(sources))
    # uv wants no artifact of a folder committed; here the folder is what is copied.
    (folder / ".gitignore").unlink(missing_ok=True)
    return folder / wheel_name()
