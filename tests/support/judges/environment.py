"""The judges' environment, which ``make`` sets up, and what is run in it."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from support.source_tree import ROOT

_PYTHON = ROOT / os.environ.get("JUDGES_PYTHON", "build/judges/bin/python")
NEEDS_JUDGES = pytest.mark.skipif(
    "JUDGES_PYTHON" not in os.environ and not _PYTHON.exists(),
    reason="'make test' and 'make nightly' set up build/judges, an environment of other readers",
)
_SERVED = Path(__file__).with_name("served.py")


def served(task: Mapping[str, Any], folder: Path) -> Any:
    """The answers of a process of its own, which may read and write below the folder."""
    done = subprocess.run(
        [str(_PYTHON), str(_SERVED)],
        cwd=folder,
        input=json.dumps(task),
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])
