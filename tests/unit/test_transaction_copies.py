"""PyIceberg transactions, patched to copy metadata once per change, show and commit the same as before."""

from __future__ import annotations

import pyarrow as pa
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import Table
from pyiceberg.table.update import update_table_metadata

ROWS = pa.table({"id": pa.array([1, 2], pa.int64())})


def table_of(catalog: SqlCatalog) -> Table:
    catalog.create_namespace("ns")
    return catalog.create_table("ns.t", ROWS.schema)


def test_a_transaction_shows_every_staged_change(local_catalog: SqlCatalog) -> None:
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
    updated = update_table_metadata(table.metadata, transaction._updates)
    assert second.snapshots == updated.snapshots
    assert second.refs == updated.refs
    transaction.commit_transaction()
    assert table.metadata.snapshots == second.snapshots
    assert table.scan().to_arrow()["id"].to_pylist() == [1, 2, 1, 2]


def test_a_transaction_sees_a_concurrent_commit_after_a_refresh(local_catalog: SqlCatalog) -> None:
    """The cached copy belongs to the table before the refresh and is not used."""
    table = table_of(local_catalog)
    other = local_catalog.load_table("ns.t")
    transaction = table.transaction()
    assert transaction.table_metadata.snapshots == []
    other.append(ROWS)
    table.refresh()
    assert transaction.table_metadata.current_snapshot_id == other.metadata.current_snapshot_id
