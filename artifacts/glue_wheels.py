"""Packs what a Glue job installs: one zip with a wheel of every package, which pip takes for its only index.

Glue 5.0 and later install from ``NAME.gluewheels.zip``, in it ``wheels/*.whl`` and ``wheels/requirements.txt``, when
``--additional-python-modules`` names it and ``--python-modules-installer-option`` is ``--no-index``
(platform: glue-wheels-zip).  Nothing comes from the internet then (rule: deploy-pinned-packages).

Also what Glue has itself is in it, in Glue's version: pip leaves alone what is installed in the version asked for, and
the zip is enough by itself wherever Glue installs it to.
"""

from __future__ import annotations

import tempfile
import zipfile
from collections.abc import Iterable, Mapping
from pathlib import Path

from artifacts.installers import pip
from artifacts.locks import GLIBC, GLUE_LOCK, GLUE_PYTHON
from artifacts.pins import read_pins, version

FOLDER = "wheels"
REQUIREMENTS = f"{FOLDER}/requirements.txt"
_FIRST_TIME = (1980, 1, 1, 0, 0, 0)
"""The time of every file in the zip, so that the same wheels give the same bytes."""


def zip_name() -> str:
    """The file name of the zip."""
    return "icekeeper.gluewheels.zip"


def build(wheel: Path, folder: Path) -> Path:
    """Pack ``wheel`` and all that it needs into ``folder``; the path of the zip.

    Raises:
        subprocess.CalledProcessError: a wheel cannot be had, or is not the one that was locked.
    """
    with tempfile.TemporaryDirectory() as scratch:
        tags = [word for tag in platform_tags() for word in ("--platform", tag)]
        target = ["--python-version", GLUE_PYTHON, "--only-binary", ":all:", *tags]
        # All of it is locked: pip only fetches, and takes no file but those (rule: deploy-pinned-packages).
        wanted = ["--no-deps", "--require-hashes", "--requirement", str(GLUE_LOCK)]
        pip("download", "--quiet", *wanted, *target, "--dest", scratch)
        pinned = {**read_pins(GLUE_LOCK), "icekeeper": version()}
        return pack([wheel, *Path(scratch).glob("*.whl")], pinned, folder / zip_name())


def platform_tags() -> list[str]:
    """Every tag of a Linux wheel that Glue can use."""
    old = [f"manylinux{name}_x86_64" for name in ("2014", "2010", "1")]
    return [*(f"manylinux_2_{minor}_x86_64" for minor in range(GLIBC, 4, -1)), *old]


def pack(wheels: Iterable[Path], pinned: Mapping[str, str], path: Path) -> Path:
    """Write the zip of these wheels, and the list of what is to be installed of them."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w") as archive:  # wheels are compressed already
        archive.writestr(entry(REQUIREMENTS), _lines(pinned))
        for wheel in sorted(wheels, key=lambda wheel: wheel.name):
            archive.writestr(entry(f"{FOLDER}/{wheel.name}"), wheel.read_bytes())
    return path


def entry(name: str) -> zipfile.ZipInfo:
    """A file of a zip whose bytes do not depend on when, where and by whom it is packed."""
    entry = zipfile.ZipInfo(name, _FIRST_TIME)
    entry.create_system = 3  # Unix, whatever builds it: the next line is read by it
    entry.external_attr = 0o644 << 16
    return entry


def _lines(pins: Mapping[str, str]) -> str:
    return "".join(f"{name}=={pinned}\n" for name, pinned in sorted(pins.items()))
