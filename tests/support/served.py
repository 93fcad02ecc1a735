"""Passes over any table of several catalogs that share a state."""

from __future__ import annotations

import re
from pathlib import Path

from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import Table

from icekeeper.catalogs.catalog import Catalog
from icekeeper.catalogs.load import open_catalog
from icekeeper.engines.local_engine import LocalEngine
from icekeeper.machine.clock import HOUR_MS, system_clock
from icekeeper.model import TableName
from icekeeper.report.outcome import OperationOutcome
from icekeeper.runtime import Runtime
from icekeeper.storage.allowed_locations import ALLOWED_PREFIXES
from icekeeper.storage.paths import normalise
from icekeeper.storage.storage import store_now_ms
from support.maintained_table import EAGER, MaintainedTable, grow_old, same_clock
from support.readers import pyiceberg_ids


def second_catalog(tmp_path: Path) -> SqlCatalog:
    """Another catalog of the same deployment, as PyIceberg's object."""
    other = SqlCatalog("other", uri=f"sqlite:///{tmp_path / 'other.db'}", warehouse=(tmp_path / "other").as_uri())
    other.create_namespace("ns")
    return other


def maintain(
    table: MaintainedTable,
    catalog: SqlCatalog,
    name: str,
    environment: dict[str, str] | None = None,
    *,
    served: SqlCatalog | None = None,
    **settings: str,
) -> dict[str, OperationOutcome]:
    """Run a pass over any table as the command does; ``served`` is another catalog with the same state.

    Its clock is ``table.late_ms`` ahead of the system's.
    """
    others = {
        other.name: other for other in (table.pyiceberg, served) if other is not None and other.name != catalog.name
    }
    runtime = Runtime(
        open_ours(catalog, environment),
        table.state,
        environment=environment or {},
        clock=lambda: system_clock() + table.late_ms,
        store_clock=same_clock if table.late_ms else store_now_ms,
        other_catalog=lambda recorded: open_ours(others[recorded.name]) if recorded.name in others else None,
    )
    outcome = runtime.maintain(TableName.parse(name), {**EAGER, **settings}, LocalEngine(1), unsafe=True)
    return {part.operation.value: part for part in outcome.operations}


def open_ours(catalog: SqlCatalog, environment: dict[str, str] | None = None) -> Catalog:
    """Icekeeper's view of the catalog; by default, its tables may be anywhere below the database's folder."""
    database = catalog.properties["uri"].removeprefix("sqlite:///")
    beside = {ALLOWED_PREFIXES: f"*={Path(database).parent}"}
    return open_catalog(catalog.name, {**catalog.properties, "type": "sql"}, {**beside, **(environment or {})})


def ids(table: Table) -> list[int]:
    """The current column ``id`` as PyIceberg reads it."""
    return pyiceberg_ids(table.refresh().metadata_location)


def files_of(table: Table) -> list[str]:
    """The live data files of the table."""
    return [task.file.file_path for task in table.scan().plan_files()]


def grow_old_in_history(table: Table) -> None:
    """Date all snapshots and logs of the table back by a month."""
    path = Path(normalise(table.refresh().metadata_location))
    path.write_text(re.sub(r'("(?:timestamp-ms|last-updated-ms)" *: *)(\d+)', _a_month_ago, path.read_text()))


def _a_month_ago(found: re.Match[str]) -> str:
    return f"{found[1]}{int(found[2]) - 30 * 24 * HOUR_MS}"


def age_everything(table: MaintainedTable) -> None:
    """Make every file of the warehouse older than any grace period."""
    grow_old(path for path in table.folder.parent.parent.rglob("*") if path.is_file())
