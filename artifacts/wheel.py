"""Builds the package's wheel."""

from __future__ import annotations

from pathlib import Path

from artifacts.installers import uv
from artifacts.pins import CONSTRAINTS, ROOT, version

__all__ = ["build", "wheel_name"]


def wheel_name() -> str:
    """The file name of the wheel."""
    return f"icekeeper-{version()}-py3-none-any.whl"


def build(folder: Path, *, sources: Path = ROOT) -> Path:
    """Build the wheel of these sources into ``folder``; its path.

    Raises:
        subprocess.CalledProcessError: it could not be built.
    """
    # The build's own tools are pinned, too: their version stands in the wheel.
    uv("build", "--quiet", "--wheel", "--build-constraints", str(CONSTRAINTS), "--out-dir", str(folder), str(sources))
    # uv wants no artifact of a folder committed; here the folder is what is copied.
    (folder / ".gitignore").unlink(missing_ok=True)
    return folder / wheel_name()
