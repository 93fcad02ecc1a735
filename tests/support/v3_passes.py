"""Passes over a table of format v3, and what must hold of its rows afterwards."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from icekeeper.model import ManifestContent, ManifestFile
from icekeeper.policy import Operation
from icekeeper.report.outcome import OperationOutcome
from support.deletes import create_by_region
from support.files_on_disk import local_path
from support.maintained_table import MaintainedTable, maintained_table
from support.outcomes import outcome_of
from support.readers import duckdb_rows
from support.v3 import append, data_files, lineage, upgrade

KEEPING = {"snapshot_retention_hours": "1000"}


@contextmanager
def upgraded_table(folder: Path) -> Iterator[MaintainedTable]:
    """Upgraded to v3, three files of ten rows in us and in eu: ids 0.., 100.., 200.. and 50.., 150.., 250.."""
    with maintained_table(folder) as made:
        create_by_region(made, 3)
        upgrade(made)
        yield made


def with_row_ids(table: MaintainedTable) -> MaintainedTable:
    """One more file in each region, 300.. and 350..: the first v3 commit gave every row its id."""
    append(table, 300, 10, "us")
    append(table, 350, 10, "eu")
    return table


def compacted(table: MaintainedTable, **overrides: Any) -> OperationOutcome:
    return outcome_of(table.maintain(operations="compact", **overrides), Operation.COMPACT)


def rows(table: MaintainedTable) -> Counter[int]:
    """As DuckDB reads them: it knows nothing of us, and applies deletion vectors."""
    return Counter(row["id"] for row in duckdb_rows(table.loaded.metadata_location))


def file_of(table: MaintainedTable, row_id: int) -> str:
    """The data file whose first row that is."""
    for file in data_files(table):
        with pq.ParquetFile(local_path(file.file_path)) as opened:
            if opened.read(["id"]).column("id")[0].as_py() == row_id:
                return file.file_path
    raise AssertionError(row_id)


def manifests(table: MaintainedTable) -> list[ManifestFile]:
    reader = table.reader
    head = reader.metadata.current_snapshot
    assert head is not None
    return reader.manifests(head)


def assert_row_ids_hold(table: MaintainedTable) -> None:
    """Every row has one, no two the same, all below ``next-row-id``; the head's own numbers add up."""
    metadata = table.loaded.metadata
    ids = [row_id for _, row_id, _ in lineage(table).elements()]
    assert len(set(ids)) == len(ids)
    assert all(row_id is not None and row_id < metadata.next_row_id for row_id in ids)
    for manifest in manifests(table):
        assert (manifest.first_row_id is None) == (manifest.content is ManifestContent.DELETES)
    head = metadata.current_snapshot
    assert head is not None
    assert head.raw["first-row-id"] + head.raw["added-rows"] == metadata.next_row_id
