"""The same sources give the same artifacts, byte for byte, on every machine."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

from artifacts import glue_wheels, layer, wheel
from artifacts.pins import ROOT
from support.command import digest

SOURCES = ("pyproject.toml", "README.md", "LICENSE", "CHANGELOG.md", "layers")


def tree(folder: Path) -> dict[str, tuple[str, str]]:
    """Digest and mode of every file."""
    return {
        path.relative_to(folder).as_posix(): (digest(path), oct(path.stat().st_mode))
        for path in folder.rglob("*")
        if path.is_file()
    }


def elsewhere(folder: Path) -> Path:
    """Copy the sources to another folder, with another time of change, for one user only."""
    for name in SOURCES:
        source = ROOT / name
        (shutil.copytree if source.is_dir() else shutil.copy)(source, folder / name)
    for path in folder.rglob("*"):
        path.chmod(0o700 if path.is_dir() else 0o600)
        os.utime(path, (1_000_000_000, 1_000_000_000))
    return folder


def twice(tmp_path: Path, build: Callable[[Path, Path], Path]) -> list[Path]:
    """Call ``build`` with the wheel of these sources, and with the wheel of their copy under another umask."""
    built = []
    for name, sources in (("a", ROOT), ("b", elsewhere(tmp_path / "copy"))):
        before = os.umask(0o077 if name == "b" else 0o022)
        try:
            (tmp_path / name).mkdir()
            built.append(build(wheel.build(tmp_path / name, sources=sources), tmp_path / name))
        finally:
            os.umask(before)
    return built


def test_the_zip_of_the_jobs_is_reproducible(tmp_path: Path) -> None:
    (tmp_path / "copy").mkdir()
    here, there = twice(tmp_path, glue_wheels.build)
    assert digest(here) == digest(there)
    assert digest(here.parent / wheel.wheel_name()) == digest(there.parent / wheel.wheel_name())


def test_the_layer_of_the_functions_is_reproducible(tmp_path: Path) -> None:
    (tmp_path / "copy").mkdir()

    def build(built: Path, folder: Path) -> Path:
        layer.build(built, folder / "layer", "arm64")
        return folder / "layer"

    here, there = twice(tmp_path, build)
    assert tree(here) == tree(there)
