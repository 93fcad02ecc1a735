"""Which version of which package: what is pinned here, and what AWS Glue has."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
CONSTRAINTS = ROOT / "constraints.txt"
GLUE_VERSION = "5.1"
"""Of the jobs; template.yaml and the pages have the same, or a test fails."""
GLUE_PACKAGES = Path(__file__).parent / f"glue-{GLUE_VERSION}.txt"

NEWER_THAN_GLUE = ("pyarrow", "typing-extensions")
"""What Glue has, too, but older than this package (PyArrow) or one of those that it needs (pydantic) bears."""
SECURITY_RELEASES = {"pygments": "2.20.0", "urllib3": "2.6.3"}
"""What Glue has with known vulnerabilities, and the first version without: CVE-2026-4539; CVE-2025-66418,
CVE-2025-66471, CVE-2026-21441."""


def version() -> str:
    """This package's version."""
    return str(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"])


def normalized(name: str) -> str:
    """A package's name as indexes compare it (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name).lower()


def read_pins(path: Path) -> dict[str, str]:
    """The lines ``name==version`` of a file: version by normalized name; the hashes of a lock are passed over."""
    lines = (line.partition("#")[0].strip(" \\") for line in path.read_text().splitlines())
    pairs = (line.split("==") for line in lines if line and not line.startswith("--hash="))
    return {normalized(name): pinned for name, pinned in pairs}


def pins_for_glue(ours: Mapping[str, str], glues: Mapping[str, str]) -> dict[str, str]:
    """Package → pinned version for a Glue job: Glue's own version if Glue has the package.

    Glue's other packages were made for that version (aiobotocore works with a single botocore version).  So a version
    is replaced only if it is too old for us, or has known vulnerabilities.
    """
    replaced = {*NEWER_THAN_GLUE, *SECURITY_RELEASES}
    kept = {name: pinned for name, pinned in glues.items() if name in ours and name not in replaced}
    return {**ours, **kept}
