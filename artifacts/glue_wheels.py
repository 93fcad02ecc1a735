"""Packs what a Glue job installs: one zip with a wheel of every package, which pip takes for its only index.

Glue 5.0 and later install from ``NAME.gluewheels.zip``, in it ``wheels/*.whl`` and ``wheels/requirements.txt``, when
``--additional-python-modules`` names it and ``--python-modules-installer-option`` is ``--no-index`` (platform 55).
Nothing comes from the internet then (rule 149).

Also what Glue has itself is in it, in Glue's version: pip leaves alone what is installed in the version asked for, and
the zip is enough by itself wherever Glue installs it to.
"""

from __future__ import annotations

import tempfile
import zipfile
from collections.abc import Iterable, Mapping
from pathlib import Path

from artifacts.installers import pip, uv
from artifacts.pins import CONSTRAINTS, GLUE_PACKAGES, ROOT, pins_for_glue, read_pins, version

__all__ = ["PYTHON", "REQUIREMENTS", "build", "pack", "platform_tags", "resolve", "zip_name"]

PYTHON = "3.11"
GLIBC = 28
"""The newest glibc 2.x that wheels may be built for: PyArrow needs 2.28, Glue 5.1's Amazon Linux 2023 has 2.34."""

FOLDER = "wheels"
REQUIREMENTS = f"{FOLDER}/requirements.txt"
_FIRST_TIME = (1980, 1, 1, 0, 0, 0)
"""The time of every file in the zip, so that the same wheels give the same bytes."""


def zip_name() -> str:
    """The file name of the zip."""
    return f"icekeeper-{version()}.gluewheels.zip"


def build(wheel: Path, folder: Path) -> Path:
    """Pack ``wheel`` and all that it needs into ``folder``; the path of the zip.

    Raises:
        subprocess.CalledProcessError: the pinned versions do not fit together, or a wheel cannot be had.
    """
    pinned = resolve(pins_for_glue(read_pins(CONSTRAINTS), read_pins(GLUE_PACKAGES)))
    with tempfile.TemporaryDirectory() as scratch:
        listed = Path(scratch) / "requirements.txt"
        listed.write_text(_lines(pinned))
        tags = [word for tag in platform_tags() for word in ("--platform", tag)]
        target = ["--python-version", PYTHON, "--only-binary", ":all:", *tags]
        # All of it is pinned: pip only fetches.
        pip("download", "--quiet", "--no-deps", *target, "--dest", scratch, "--requirement", str(listed))
        return pack([wheel, *Path(scratch).glob("*.whl")], {**pinned, "icekeeper": version()}, folder / zip_name())


def resolve(pins: Mapping[str, str]) -> dict[str, str]:
    """What the package needs on Glue, with these versions and no others.

    Raises:
        subprocess.CalledProcessError: they do not fit together; uv has said which.
    """
    with tempfile.TemporaryDirectory() as scratch:
        constraints, found = Path(scratch) / "constraints.txt", Path(scratch) / "found.txt"
        constraints.write_text(_lines(pins))
        target = ["--python-version", PYTHON, "--python-platform", f"x86_64-manylinux_2_{GLIBC}"]
        plain = ["--quiet", "--no-header", "--no-annotate", "--only-binary", ":all:"]
        told = ["--constraints", str(constraints), "--output-file", str(found)]
        uv("pip", "compile", *plain, *target, *told, str(ROOT / "pyproject.toml"))
        return read_pins(found)


def platform_tags() -> list[str]:
    """Every tag of a Linux wheel that Glue can use."""
    old = [f"manylinux{name}_x86_64" for name in ("2014", "2010", "1")]
    return [*(f"manylinux_2_{minor}_x86_64" for minor in range(GLIBC, 4, -1)), *old]


def pack(wheels: Iterable[Path], pinned: Mapping[str, str], path: Path) -> Path:
    """Write the zip of these wheels, and the list of what is to be installed of them."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w") as archive:  # wheels are compressed already
        archive.writestr(_entry(REQUIREMENTS), _lines(pinned))
        for wheel in sorted(wheels, key=lambda wheel: wheel.name):
            archive.writestr(_entry(f"{FOLDER}/{wheel.name}"), wheel.read_bytes())
    return path


def _entry(name: str) -> zipfile.ZipInfo:
    entry = zipfile.ZipInfo(name, _FIRST_TIME)
    entry.create_system = 3  # Unix, whatever builds it: the next line is read by it
    entry.external_attr = 0o644 << 16
    return entry


def _lines(pins: Mapping[str, str]) -> str:
    return "".join(f"{name}=={pinned}\n" for name, pinned in sorted(pins.items()))
