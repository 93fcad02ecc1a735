"""One process of DuckDB reads many snapshots, and says which one it could not read."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from pyiceberg.catalog.sql import SqlCatalog

from icekeeper.demo.measure import Snapshot, read_checksum, read_checksums
from icekeeper.errors import StorageError


def test_many_snapshots_are_told_in_their_order_and_what_cannot_be_read_by_name(
    local_catalog: SqlCatalog, tmp_path: Path
) -> None:
    local_catalog.create_namespace("ns")
    rows = pa.table({"id": [1, 2]})
    table = local_catalog.create_table("ns.t", schema=rows.schema)
    for _ in range(2):
        table.append(rows)
    location, first = table.metadata_location, table.snapshots()[0].snapshot_id
    snapshots: list[Snapshot] = [(location, None), (location, first)]
    found = read_checksums(snapshots)
    assert [checksum.rows for checksum in found] == [4, 2]
    assert found[1] == read_checksum(location, snapshot_id=first)
    missing = tmp_path / "v1.metadata.json"
    with pytest.raises(StorageError, match=f"^DuckDB could not read {missing}: "):
        read_checksums([*snapshots, (str(missing), None), (location, None)])
