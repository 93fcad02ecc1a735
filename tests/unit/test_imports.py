"""The modules that functions and workers import at their start, which costs time at each start
(platform: function-import-time)."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

FUNCTIONS = Path(__file__).resolve().parents[2] / "functions"
PRINTED = "print(*sorted(sys.modules), sep='\\n')"
# Modules for the first call of a function: imported later, they would get less CPU.
FIRST_CALL = ("boto3", "icekeeper.state.dynamodb.table", "icekeeper.storage.file_systems", "pyiceberg.io.pyarrow")
INTERACTIVE = ("typer", "rich", "sqlalchemy", "pandas", "pyspark", "pydantic.v1", "sqlite3")
OTHER_WORK = tuple(
    f"icekeeper.operations.{module}"
    for module in (
        *("compaction.compact", "compaction.work.write_file", "expiry.expire_snapshots", "manifests.rewrite_manifests"),
        *("orphans.remove_orphans", "position_deletes.merge", "statistics.compute_statistics"),
    )
)
# PyIceberg's transforms and expressions are imported where a table needs them.
NOT_FOR_WORKERS = (
    *("boto3", "pandas", "pyarrow.dataset", "pydantic.v1", "pyparsing", "pyspark", "rich", "sqlalchemy", "typer"),
    *("pyiceberg.catalog", "pyiceberg.expressions", "pyiceberg.io.pyarrow", "pyiceberg.manifest"),
    *("pyiceberg.table", "icekeeper.catalogs", "icekeeper.commit", "icekeeper.pass_context", "icekeeper.runtime"),
    *("pyiceberg.transforms", "icekeeper.state"),
)


def modules_after(script: str) -> set[str]:
    command = [sys.executable, "-c", f"import sys; {script}; {PRINTED}"]
    return set(subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines())


def within(modules: set[str], packages: tuple[str, ...]) -> list[str]:
    for package in packages:  # a module that does not exist is never imported
        assert not package.startswith("icekeeper.") or importlib.util.find_spec(package) is not None, package
    return sorted(name for name in modules if any(f"{name}.".startswith(f"{package}.") for package in packages))


def test_a_function_imports_only_modules_for_its_work() -> None:
    modules = modules_after(f"sys.path.insert(0, {str(FUNCTIONS)!r}); import delete")
    assert within(modules, (*OTHER_WORK, "icekeeper.detection", *INTERACTIVE)) == []
    assert set(FIRST_CALL) <= modules
    assert len(modules) <= 885


def test_a_worker_imports_only_modules_for_its_work() -> None:
    operations = ("compaction.work.rewrite", "compaction.work.sort_files", "statistics.sketch_task")
    names = [f"icekeeper.operations.{name}" for name in (*operations, "position_deletes.merge")]
    modules = modules_after(f"import {', '.join(names)}")
    assert within(modules, NOT_FOR_WORKERS) == []
    assert len(modules) <= 405


def test_a_sqlite_catalog_opens_without_sqlalchemy_and_pyicebergs_catalog(tmp_path: Path) -> None:
    """Both take longer to import than all other modules of a small pass."""
    path = str(tmp_path / "catalog.db")
    opened = f'open_catalog("lake", {{"type": "sql", "uri": "sqlite:///{path}", "warehouse": "file:///w"}})'
    modules = modules_after(
        f"import sqlite3; sqlite3.connect({path!r}).close(); from icekeeper.catalogs.load import open_catalog; {opened}"
    )
    assert not {"sqlalchemy", "pyiceberg.catalog", "pyiceberg.table", "boto3"} & modules
    assert "icekeeper.catalogs.sql" in modules


def test_a_pass_imports_pyicebergs_transforms_only_for_partitions() -> None:
    """They take a tenth of its start."""
    modules = modules_after("import icekeeper.runtime, icekeeper.maintenance.run_pass")
    assert within(modules, ("pyiceberg.expressions", "pyiceberg.transforms")) == []
