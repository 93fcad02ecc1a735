"""The README installs from a checkout, and names every extra that there is."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_the_readme_names_every_extra_and_installs_from_a_checkout() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    section = (ROOT / "README.md").read_text().partition("## Install\n")[2].partition("\n## ")[0]
    assert re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE) == list(extras)
    installed = re.findall(r"pip install '([^']+)'", section)
    assert installed
    assert all(re.fullmatch(r"\.(\[\w+\])?", what) for what in installed)
