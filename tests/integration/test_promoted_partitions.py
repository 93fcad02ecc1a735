"""Columns that a table is partitioned by, as they are, and that have become another type since (rule 176)."""

from __future__ import annotations

import datetime
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.catalog.sql import SqlCatalog

from icekeeper.metadata.manifest_write import partition_types
from icekeeper.metadata.single_value import decode, encode
from icekeeper.policy import Operation
from icekeeper.report.outcome import Status
from support.maintained_table import MaintainedTable, new_table

DAY_US = 86_400_000_000
TODAY = datetime.datetime.now(datetime.UTC).date()


@pytest.fixture
def table(local_catalog: SqlCatalog, tmp_path: Path) -> MaintainedTable:
    """A file of today and one of a month ago, in partitions of a date that has become a timestamp."""
    columns = pa.schema([("id", pa.int64()), ("part", pa.date32())])
    table = new_table(local_catalog, tmp_path, schema=columns)
    with table.table.update_spec() as update:
        update.add_identity("part")
    for row_id, age in enumerate((0, 0, 30)):
        day = TODAY - datetime.timedelta(days=age)
        table.table.append(pa.table({"id": [row_id], "part": [day]}, schema=columns))
    table.rewrite_document(_promote)
    return table


def _promote(document: dict[str, Any]) -> None:
    (old,) = document["schemas"]
    new = json.loads(json.dumps(old)) | {"schema-id": 1}
    new["fields"][1]["type"] = "timestamp"
    document["schemas"] = [old, new]
    document["current-schema-id"] = 1


def test_a_day_stays_that_day(table: MaintainedTable) -> None:
    """Read as microseconds, every day would be the beginning of 1970, and past any retention."""
    days = (TODAY - datetime.date(1970, 1, 1)).days
    assert partition_types(table.metadata, table.metadata.default_spec_id) == ["timestamp"]
    assert sorted(file.partition for file in table.data_files()) == sorted(
        (d * DAY_US,) for d in (days, days, days - 30)
    )
    outcome = table.run(Operation.EXPIRE_PARTITIONS, partition_retention_hours="240")
    assert outcome.status is Status.SUCCEEDED, outcome.reason
    assert sorted(file.partition for file in table.data_files()) == [(days * DAY_US,)] * 2
    # What stays was written anew, under the type of today.
    assert table.run(Operation.REWRITE_MANIFESTS, min_manifests_to_rewrite="2").status is Status.SUCCEEDED
    assert sorted(file.partition for file in table.data_files()) == [(days * DAY_US,)] * 2
    table.assert_sound()


@pytest.mark.parametrize(("kind", "units"), [("timestamp", 10**6), ("timestamptz_ns", 10**9)])
def test_a_bound_from_before_is_that_day(kind: str, units: int) -> None:
    """Bounds of columns and of partitions in a manifest list keep their four bytes (rule 22)."""
    assert decode(kind, encode("date", -3)) == -3 * 86_400 * units
    assert decode(kind, encode(kind, -3)) == -3
