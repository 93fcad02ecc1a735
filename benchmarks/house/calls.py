"""In how many files a command calls functions, and how deep; each command in a process and with a table of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
from pyiceberg.catalog.sql import SqlCatalog

_FILES = 12
_PASS = ("maintain", "ns.t", "--operations")
_EXPIRED = ("--unsafe", "--set", "snapshot_retention_hours=0", "--set", "max_snapshots_to_keep=1")
COMMANDS: Mapping[str, tuple[str, ...]] = {
    "compact": (*_PASS, "compact"),
    "expire_snapshots": (*_PASS, "expire_snapshots", *_EXPIRED),
    "detect": ("detect",),
    "pin list": ("pin", "list", "ns.t"),
}
"""What is measured, and the arguments."""


@dataclass(frozen=True, slots=True)
class CalledCommand:
    """What one call of the command did."""

    files: int
    """Files of the package of which a function was called."""
    depth: int
    """The most functions of the package on the stack of a thread."""
    is_planned: bool
    """Whether compaction planned."""
    with_policy: int
    """Until then: files of which a function had the policy as an argument, or what has it as an attribute."""
    with_catalog: int
    processes: int
    """Worker processes that were started; what they called is not counted."""
    answer: str
    deepest: tuple[str, ...]
    """The functions on the stack when it was deepest, the outermost first."""


def call(root: Path, name: str) -> CalledCommand:
    """Run one command over a new table of twelve small files in a local SQL catalog.

    Raises:
        RuntimeError: the command failed, or compaction called no planner that is known here.
    """
    with tempfile.TemporaryDirectory() as folder:
        called = _called(root, Path(folder), COMMANDS[name])
    if name == "compact" and not called.is_planned:
        raise RuntimeError("compact did not call the planner that benchmarks/house/traced.py names")
    return called


def _called(root: Path, folder: Path, arguments: tuple[str, ...]) -> CalledCommand:
    properties = {"type": "sql", "uri": f"sqlite:///{folder}/catalog.db", "warehouse": (folder / "lake").as_uri()}
    _create_table(properties)
    for name in ("home", "state"):
        (folder / name).mkdir()
    others = {name: value for name, value in os.environ.items() if not name.startswith(("PYICEBERG_", "ICEKEEPER_"))}
    own = {f"PYICEBERG_CATALOG__C__{key.upper()}": value for key, value in properties.items()}
    places = {"HOME": str(folder / "home"), "ICEKEEPER_STATE": str(folder / "state" / "state.db")}
    output = folder / "called.json"
    words = [sys.executable, "-m", "benchmarks.house.traced", str(output), *arguments, "--catalog", "C"]
    done = subprocess.run(
        words, cwd=root, env={**others, **own, **places}, capture_output=True, text=True, timeout=300, check=False
    )
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(arguments)} ended with {done.returncode}: {done.stderr}")
    found = json.loads(output.read_text())
    return CalledCommand(
        files=len(found["files"]),
        depth=len(found["deepest"]),
        is_planned=found["planned"],
        with_policy=len(found["with_policy"]),
        with_catalog=len(found["with_catalog"]),
        processes=found["processes"],
        answer=done.stdout.strip(),
        deepest=tuple(found["deepest"]),
    )


def _create_table(properties: Mapping[str, str]) -> None:
    """Table ``ns.t`` of twelve files of three rows, from as many commits."""
    rows = pa.table({"id": pa.array([1, 2, 3], pa.int64()), "name": ["a", None, "c"]})
    catalog = SqlCatalog("C", **properties)
    try:
        catalog.create_namespace("ns")
        table = catalog.create_table("ns.t", rows.schema)
        for _ in range(_FILES):
            table.append(rows)
    finally:
        catalog.close()
