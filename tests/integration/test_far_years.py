"""Dates that Python's calendar does not reach: a year with five digits is a common mistake of writers."""

from __future__ import annotations

import datetime
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pytest
from pyiceberg.schema import Schema
from pyiceberg.table import StaticTable
from pyiceberg.types import LongType, NestedField, TimestampType

from icekeeper.operations.compaction.write_properties import civil_date, partition_path
from icekeeper.policy import Operation
from icekeeper.report.outcome import Status
from support.maintained_table import maintained_table, outcome_of

SCHEMA = Schema(NestedField(1, "id", LongType()), NestedField(2, "at", TimestampType()))
DAY = 6_672_980
"""20240-01-01."""


def test_dates_of_any_year() -> None:
    cycle = 146_097
    for days in (0, -1, 59, 11_016, 19_782):
        date = datetime.date(1970, 1, 1) + datetime.timedelta(days)
        for cycles in (-30, 0, 45):
            assert civil_date(days + cycles * cycle) == (date.year + 400 * cycles, date.month, date.day)
    assert civil_date(DAY) == (20240, 1, 1)


@pytest.mark.parametrize(
    ("transform", "value", "path"),
    [
        ("year", 18270, "p=20240"),
        ("month", 18270 * 12, "p=20240-01"),
        ("day", DAY, "p=20240-01-01"),
        ("hour", DAY * 24 + 7, "p=20240-01-01-07"),
    ],
)
def test_old_files_move_to_partitions_of_far_years(transform: str, value: int, path: str, tmp_path: Path) -> None:
    with maintained_table(tmp_path) as made:
        made.pyiceberg.create_namespace("ns")
        # PyIceberg cannot tell bounds of such dates.
        properties = {"format-version": "2", "write.metadata.metrics.default": "none"}
        table = made.pyiceberg.create_table("ns.t", SCHEMA, properties=properties)
        moment = (DAY * 24 + 7) * 3600 * 10**6
        rows = pa.table({"id": [1, 2], "at": pa.array([moment] * 2, pa.int64()).cast(pa.timestamp("us"))})
        table.append(rows)
        table.append(rows)
        with made.table.update_spec() as update:
            update.add_field("at", transform, "p")
        outcome = outcome_of(made.maintain(operations="compact"), Operation.COMPACT)
        assert outcome.status is Status.SUCCEEDED, outcome
        tasks = list(StaticTable.from_metadata(made.loaded.metadata_location).scan().plan_files())
        assert Counter((t.file.partition[0], t.file.record_count) for t in tasks) == {(value, 4): 1}
        assert f"/{path}/" in tasks[0].file.file_path
        spec = made.loaded.metadata.specs[1]
        assert partition_path(spec, (value,), made.loaded.metadata.schemas_current_first) == path
