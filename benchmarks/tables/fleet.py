"""A fleet of tables for detection: metadata documents as Spark leaves them, in SQL catalogs over SQLite files.

Each table has 10 to 50 snapshots, 20 columns, properties of its own and summaries of every kind; no manifest exists.
"""

from __future__ import annotations

import json
import random
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

from pyiceberg.catalog.sql import SqlCatalog

from benchmarks.tables.table_writer import CREATED_MS, empty_document

CATALOGS = 4
NOW_MS = CREATED_MS
"""The newest snapshot of every table is of this time."""
_COLUMNS = 20
_HOUR_MS = 3_600_000
_MB = 1024 * 1024


def _document(location: str, chance: random.Random) -> dict[str, Any]:
    """A table that somebody appends to every few hours, in one of several conditions."""
    count, files, every_ms = chance.randint(10, 50), 0, chance.randint(1, 12) * _HOUR_MS
    average, deletes = chance.choice((1, 40, 300)) * _MB, chance.choice((0, 0, 0, 7))
    snapshots: list[dict[str, Any]] = []
    for number in range(1, count + 1):
        added = chance.randint(1, 20)
        files += added
        summary = {
            "operation": "append",
            "spark.app.id": "local-1700000000000",
            "added-data-files": added,
            "added-records": added * 1000,
            "added-files-size": added * average,
            "changed-partition-count": 3,
            "total-records": files * 1000,
            "total-files-size": files * average,
            "total-data-files": files,
            "total-delete-files": deletes,
            "total-position-deletes": deletes * 10,
            "total-equality-deletes": 0,
            "manifests-created": 1,
            "manifests-kept": number % 8,
        }
        snapshot_id = chance.getrandbits(62)
        raw: dict[str, Any] = {
            "snapshot-id": snapshot_id,
            "sequence-number": number,
            "timestamp-ms": NOW_MS - (count - number) * every_ms,
            "manifest-list": f"{location}/metadata/snap-{snapshot_id}.avro",
            "summary": {key: str(value) for key, value in summary.items()},
            "schema-id": 0,
        }
        if snapshots:
            raw["parent-snapshot-id"] = snapshots[-1]["snapshot-id"]
        snapshots.append(raw)
    head = snapshots[-1]["snapshot-id"]
    fields = [
        {"id": n, "name": f"a_column_{n}", "required": False, "type": chance.choice(("long", "string", "double"))}
        for n in range(1, _COLUMNS + 1)
    ]
    log = [
        {"timestamp-ms": s["timestamp-ms"], "metadata-file": f"{location}/metadata/{n:05d}-x.metadata.json"}
        for n, s in enumerate(snapshots)
    ]
    properties = {"owner": "spark", "write.parquet.compression-codec": "zstd"}
    if not chance.randrange(5):
        properties |= {"icekeeper.target_file_size_mb": "128", "history.expire.max-snapshot-age-ms": "86400000"}
    return empty_document(location, {"type": "struct", "schema-id": 0, "fields": fields}) | {
        "properties": properties,
        "current-snapshot-id": head,
        "refs": {"main": {"snapshot-id": head, "type": "branch"}},
        "snapshots": snapshots,
        "snapshot-log": [{"snapshot-id": s["snapshot-id"], "timestamp-ms": s["timestamp-ms"]} for s in snapshots],
        "metadata-log": log,
        "last-sequence-number": len(snapshots),
        "last-updated-ms": NOW_MS,
    }


def catalog_properties(folder: Path, number: int) -> dict[str, str]:
    """One catalog's, in PyIceberg's words."""
    return {
        "type": "sql",
        "uri": f"sqlite:///{folder / f'catalog-{number}.db'}",
        "warehouse": (folder / f"warehouse-{number}").as_uri(),
    }


def make_fleet(folder: Path, tables: int) -> None:
    """So many tables, dealt out to the catalogs."""
    chance = random.Random(1)
    folder.mkdir(parents=True)
    for number in range(CATALOGS):
        SqlCatalog(f"c{number}", **catalog_properties(folder, number)).close()
        rows = []
        for index in range(number, tables, CATALOGS):
            location = folder / f"warehouse-{number}" / "ns" / f"t{index:05d}"
            (location / "metadata").mkdir(parents=True)
            path = location / "metadata" / "00050-x.metadata.json"
            path.write_text(json.dumps(_document(location.as_uri(), chance)))
            rows.append((f"c{number}", "ns", location.name, path.as_uri()))
        with closing(sqlite3.connect(folder / f"catalog-{number}.db")) as connection, connection:
            connection.executemany(
                "INSERT INTO iceberg_tables (catalog_name, table_namespace, table_name, metadata_location,"
                " iceberg_type) VALUES (?, ?, ?, ?, 'TABLE')",
                rows,
            )
