"""What functions and workers import before their first work, in a fresh interpreter
(platform: function-import-time)."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

# What a function imports before its first call, in a fresh interpreter: every cold start pays for it
# (platform: function-import-time).

FUNCTIONS = Path(__file__).resolve().parents[2] / "functions"
IMPORTS = "import sys; sys.path.insert(0, {path!r}); import {role}.handler; print(*sorted(sys.modules), sep='\\n')"
FILES = ("pyiceberg.io.pyarrow", "icekeeper.storage.file_systems")
TABLES = ("fastavro", "icekeeper.metadata.manifest_read", "icekeeper.operations", "pyiceberg.schema", "pyiceberg.table")
OF_PEOPLE = ("typer", "rich", "sqlalchemy", "pandas", "pyspark", "pydantic.v1", "sqlite3")
WORK = tuple(
    f"icekeeper.operations.{module}"
    for module in (
        *("compaction.compact", "compaction.work.write_file", "expiry.expire_snapshots", "manifests.rewrite_manifests"),
        *("orphans.remove_orphans", "position_deletes.merge", "statistics.compute_statistics"),
    )
)


@pytest.mark.parametrize(
    ("role", "most", "needless", "ahead"),
    [
        ("report", 886, (*WORK, "icekeeper.detection"), FILES),
        ("remove_orphans", 882, (*WORK, "icekeeper.detection"), FILES),  # as all that run an operation
    ],
)
def test_a_function_imports_what_its_work_needs(
    role: str, most: int, needless: tuple[str, ...], ahead: tuple[str, ...]
) -> None:
    words = [sys.executable, "-c", IMPORTS.format(path=str(FUNCTIONS), role=role)]
    modules = subprocess.run(words, capture_output=True, text=True, check=True).stdout.splitlines()
    unwanted = (*needless, *OF_PEOPLE)
    assert [name for name in modules if name in unwanted or name.startswith(tuple(f"{one}." for one in unwanted))] == []
    assert set(ahead) <= set(modules), "its first call would import them, with less of a processor"
    assert len(modules) <= most


# What a worker imports before its first task, in a fresh interpreter: each of them pays for it, or their server.

WORKER_IMPORTS = "import json, sys, {module}; print(json.dumps(sorted(sys.modules)))"
# Of pyiceberg a worker needs types, transforms and expressions: a fifth of its modules.
HEAVY = (
    *("boto3", "pandas", "pyarrow.dataset", "pydantic.v1", "pyparsing", "pyspark", "rich", "sqlalchemy", "typer"),
    *(
        "pyiceberg.catalog",
        "pyiceberg.expressions.parser",
        "pyiceberg.io.pyarrow",
        "pyiceberg.manifest",
        "pyiceberg.table",
    ),
    *("icekeeper.catalogs", "icekeeper.commit", "icekeeper.pass_context", "icekeeper.runtime", "icekeeper.state"),
)


@pytest.mark.parametrize(
    ("module", "most"),
    [
        (
            "icekeeper.operations.compaction.work.rewrite, icekeeper.operations.compaction.work.sort_files, "
            "icekeeper.operations.statistics.sketch_task, icekeeper.operations.position_deletes.merge",
            409,
        ),
        ("icekeeper.operations.compaction.plan.where", 303),
        ("icekeeper.engines.worker_processes", 163),
    ],
)
def test_a_worker_imports_what_its_work_needs(module: str, most: int) -> None:
    words = [sys.executable, "-c", WORKER_IMPORTS.format(module=module)]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    modules = json.loads(done.stdout)
    assert [name for name in modules if name.startswith(tuple(f"{one}." for one in HEAVY)) or name in HEAVY] == []
    assert len(modules) <= most


OPENS_SQLITE = """
import sqlite3, sys
from icekeeper.catalogs.load import open_catalog
sqlite3.connect({path!r}).close()
open_catalog("lake", {{"type": "sql", "uri": "sqlite:///" + {path!r}, "warehouse": "file:///w"}})
print(*sorted(sys.modules))
"""


def test_a_sqlite_catalog_is_opened_without_sqlalchemy_and_pyicebergs_own(tmp_path: Path) -> None:
    """Both take longer to import than all other modules of a small pass."""
    words = [sys.executable, "-c", OPENS_SQLITE.format(path=str(tmp_path / "catalog.db"))]
    modules = subprocess.run(words, capture_output=True, text=True, check=True).stdout.split()
    assert not {"sqlalchemy", "pyiceberg.catalog", "pyiceberg.table", "boto3"} & set(modules)
    assert "icekeeper.catalogs.sql" in modules


@pytest.mark.parametrize(
    "name", sorted({name for name in (*FILES, *TABLES, *WORK, *HEAVY) if name.startswith("icekeeper.")})
)
def test_what_must_not_be_imported_is_there(name: str) -> None:
    """Of a name that is gone, "is not imported" would say nothing."""
    assert importlib.util.find_spec(name) is not None
