"""PyIceberg's transactions copy the metadata once for each change, and show and commit what they did before."""

from __future__ import annotations

import pyarrow as pa
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import Table
from pyiceberg.table.update import update_table_metadata

ROWS = pa.table({"id": pa.array([1, 2], pa.int64())})


def table_of(catalog: SqlCatalog) -> Table:
    catalog.create_namespace("ns")
    return catalog.create_table("ns.t", ROWS.schema)


def test_a_transaction_shows_every_change_that_is_staged(local_catalog: SqlCatalog) -> None:
    table = table_of(local_catalog)
    transaction = table.transaction()
    begun = transaction.table_metadata
    assert begun == table.metadata
    assert begun is not table.metadata
    assert transaction.table_metadata is begun, "copied once"
    transaction.set_properties({"owner": "me"})
    assert transaction.table_metadata.properties["owner"] == "me"
    transaction.append(ROWS)
    first = transaction.table_metadata
    transaction.append(ROWS)
    second = transaction.table_metadata
    assert [len(seen.snapshots) for seen in (begun, first, second)] == [0, 1, 2]
    assert second.snapshots[1].parent_snapshot_id == first.current_snapshot_id
    told = update_table_metadata(table.metadata, transaction._updates)
    assert second.snapshots == told.snapshots
    assert second.refs == told.refs
    transaction.commit_transaction()
    assert table.metadata.snapshots == second.snapshots
    assert table.scan().to_arrow()["id"].to_pylist() == [1, 2, 1, 2]


def test_one_that_goes_on_after_another_writer_sees_what_that_one_wrote(local_catalog: SqlCatalog) -> None:
    """What was copied is not of the table that it goes on from."""
    table = table_of(local_catalog)
    other = local_catalog.load_table("ns.t")
    transaction = table.transaction()
    assert transaction.table_metadata.snapshots == []
    other.append(ROWS)
    table.refresh()
    assert transaction.table_metadata.current_snapshot_id == other.metadata.current_snapshot_id
