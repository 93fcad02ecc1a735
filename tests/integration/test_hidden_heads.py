"""A newer head of a table that its entry does not know, where its metadata lie in an unusual place (rule 90)."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from pyiceberg.catalog.sql import SqlCatalog

from icekeeper.policy import Operation
from icekeeper.report.outcome import Status
from icekeeper.storage.storage import Storage
from support.maintained_table import MaintainedTable, new_table
from support.readers import pyiceberg_rows
from support.served import age_everything

DELETING = pytest.mark.parametrize("operation", [Operation.REMOVE_ORPHANS, Operation.EXPIRE_SNAPSHOTS])


def restored(table: MaintainedTable, database: Path, **properties: str) -> str:
    """Let the catalog come back from a backup; the metadata file of the newest head, made with these properties."""
    shutil.copy(database, database.with_suffix(".backup"))
    if properties:
        with table.table.transaction() as transaction:
            transaction.set_properties(properties)
    table.append(30)
    table.append(40)
    newest = table.loaded.metadata_location
    shutil.copy(database.with_suffix(".backup"), database)
    age_everything(table)
    return newest


def assert_refused(table: MaintainedTable, operation: Operation, newest: str, **more: str) -> None:
    outcome = table.run(operation, **more)
    assert outcome.status is Status.REFUSED
    assert newest.rpartition("/")[2] in str(outcome.reason)
    assert sorted(row["id"] for row in pyiceberg_rows(newest)) == [0, 1, 10, 11, 20, 21, 30, 40]


@DELETING
def test_it_is_seen_in_a_folder_that_a_person_protects(
    local_catalog: SqlCatalog, tmp_path: Path, operation: Operation
) -> None:
    table = new_table(local_catalog, tmp_path, allowed=tmp_path)
    table.fill(3)
    newest = restored(table, tmp_path / "catalog.db")
    assert_refused(table, operation, newest, orphan_protected_prefixes=f"{table.metadata.location}/metadata")


@DELETING
def test_it_is_seen_where_the_table_keeps_its_metadata_elsewhere(
    local_catalog: SqlCatalog, tmp_path: Path, operation: Operation
) -> None:
    elsewhere = {"write.metadata.path": (tmp_path / "elsewhere").as_uri()}
    table = new_table(local_catalog, tmp_path, allowed=tmp_path, properties=elsewhere)
    table.fill(3)
    assert_refused(table, operation, restored(table, tmp_path / "catalog.db"))


@DELETING
def test_it_is_seen_in_the_folder_of_tables_without_the_property(
    local_catalog: SqlCatalog, tmp_path: Path, operation: Operation
) -> None:
    """The newer head has given the property up."""
    table = new_table(
        local_catalog, tmp_path, allowed=tmp_path, properties={"write.metadata.path": (tmp_path / "elsewhere").as_uri()}
    )
    table.fill(3)
    home = table.metadata.location
    assert_refused(
        table, operation, restored(table, tmp_path / "catalog.db", **{"write.metadata.path": f"{home}/metadata"})
    )


@pytest.mark.parametrize("refused", ["list_if_allowed", "can_list"])
def test_where_a_newer_head_could_not_be_seen_nothing_is_deleted(
    local_catalog: SqlCatalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refused: str
) -> None:
    """A role that may delete objects and not list them; the second is asked for tables of other formats."""
    table = new_table(local_catalog, tmp_path, allowed=tmp_path)
    table.fill(3)
    table.maintain(operations="compact")
    monkeypatch.setattr(Storage, refused, lambda self, prefix: None)
    before = table.files()
    outcome = table.run(Operation.EXPIRE_SNAPSHOTS)
    assert outcome.status is Status.REFUSED
    assert "allow s3:ListBucket there" in str(outcome.reason)
    assert table.files() == before
