"""Real tables of other engines, read from ``ICEKEEPER_CORPUS`` or ``../shared/corpus``.

The corpus has its own tools (``relocate.py``, ``canon.py``), loaded by path; this repository has no copy of them.
Without the corpus, its tests are skipped with a reason.
"""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

_ABSENT = "the corpus of foreign tables is not here: set ICEKEEPER_CORPUS"


@dataclass(frozen=True, slots=True)
class RelocatedTable:
    """A writable, valid copy of a corpus table; its paths are ``file://`` addresses."""

    name: str
    metadata_path: str
    location: str
    folder: Path


def corpus_root() -> Path | None:
    """Return the folder of the corpus, or None if it is missing."""
    named = os.environ.get("ICEKEEPER_CORPUS")
    root = Path(named) if named else Path(__file__).resolve().parents[2].parent / "shared" / "corpus"
    return root if (root / "EXPECTED.json").is_file() else None


def require_corpus() -> Path:
    """Return the folder of the corpus, or skip the running test."""
    root = corpus_root()
    if root is None:
        pytest.skip(_ABSENT)
    return root


def corpus_params(check: str | None = None, value: object = True) -> list[Any]:
    """Return table names for ``pytest.mark.parametrize``: all, or those with ``check: value`` in ``CHECKS.json``.

    Without a corpus, return a single parameter that skips.
    """
    if corpus_root() is None:
        return [pytest.param("absent", marks=pytest.mark.skip(reason=_ABSENT))]
    return [name for name, checks in _json("CHECKS.json").items() if check is None or checks.get(check) == value]


def expected(name: str) -> dict[str, Any]:
    """Return the entry of a table in ``EXPECTED.json``."""
    answer: dict[str, Any] = _json("EXPECTED.json")[name]
    return answer


def checks(name: str) -> dict[str, Any]:
    """Return the entry of a table in ``CHECKS.json``."""
    answer: dict[str, Any] = _json("CHECKS.json")[name]
    return answer


def corpus_table(name: str, folder: Path, *, fix_sizes: bool = False) -> RelocatedTable:
    """Copy a table below ``folder`` with all its addresses rewritten."""
    root = require_corpus()
    destination = folder / name
    location = destination.as_uri()
    _tool("relocate").relocate(root / "tables" / name, destination, location, quiet=True, fix_sizes=fix_sizes)
    return RelocatedTable(name, f"{location}/{expected(name)['metadata']}", location, destination)


def digest(rows: Iterable[Mapping[str, Any]], maps: Iterable[str] = (), uuids: Iterable[str] = ()) -> tuple[int, str]:
    """Return row count and digest as in ``EXPECTED.json``; ``maps`` and ``uuids`` name top-level columns."""
    count, sha, _ = _tool("canon").rows_digest(rows, tuple(maps), tuple(uuids))
    return count, sha


def row_lineage() -> dict[str, list[dict[str, Any]]]:
    """Return the rows of v3 tables with the ids and sequence numbers that Java reads, by table."""
    listed: dict[str, list[dict[str, Any]]] = _json("vectors/row_lineage_expected.json")
    return {name: rows for name, rows in listed.items() if expected(name)["format_version"] == 3}


def table_digest(table: RelocatedTable, rows: Iterable[Mapping[str, Any]]) -> tuple[int, str]:
    """Return :func:`digest`, with the map and uuid columns taken from the table's schemas."""
    raw = (table.folder / expected(table.name)["metadata"]).read_bytes()
    document = json.loads(gzip.decompress(raw) if raw[:2] == b"\x1f\x8b" else raw)
    schemas = document.get("schemas") or [document["schema"]]
    fields = [field for schema in schemas for field in schema["fields"]]
    maps = {field["name"] for field in fields if isinstance(field["type"], dict) and field["type"]["type"] == "map"}
    uuids = {field["name"] for field in fields if field["type"] == "uuid"}
    return digest(rows, maps, uuids)


@cache
def _json(name: str) -> dict[str, Any]:
    answer: dict[str, Any] = json.loads((require_corpus() / name).read_text())
    return answer


@cache
def _tool(name: str) -> ModuleType:
    """Load a script of the corpus without writing byte code beside it, because the folder may be read-only."""
    path = require_corpus() / f"{name}.py"
    module = ModuleType(f"corpus_{name}")
    module.__file__ = str(path)
    exec(compile(path.read_text(), path, "exec"), module.__dict__)
    return module
