"""ORC files with timestamps that Arrow cannot read are left alone by name; the others of their partition are merged."""

from __future__ import annotations

import datetime
import struct as binary
from pathlib import Path

import pytest

from icekeeper.policy import Operation
from icekeeper.report.outcome import Status
from icekeeper.rows.file_rows import why_unreadable
from support.java_writer import JavaTables
from support.maintained_table import outcome_of, registered_table
from support.plans import data_file

FAR = "is ORC with timestamps before 1678 or after 2261, which are not read"
DAY = 86_400 * 10**6
EDGE = 106_751 * DAY
"""The last whole day that Arrow reads."""


@pytest.mark.parametrize(
    ("kind", "file_format", "least", "greatest", "reason"),
    [
        ("timestamp", "ORC", -EDGE, EDGE, None),
        ("timestamp", "orc", -EDGE - DAY, 0, FAR),
        ("timestamptz", "ORC", 0, EDGE + DAY, FAR),
        ("timestamp", "PARQUET", -EDGE - DAY, EDGE + DAY, None),
        ("long", "ORC", -EDGE - DAY, EDGE + DAY, None),
        ("timestamp", "CSV", 0, 0, "is CSV, which is not read"),
    ],
)
def test_bounds_tell_what_cannot_be_read(
    kind: str, file_format: str, least: int, greatest: int, reason: str | None
) -> None:
    bounds = [{1: binary.pack("<q", value)} for value in (least, greatest)]
    file = data_file("f", 1, file_format=file_format, lower_bounds=bounds[0], upper_bounds=bounds[1])
    assert why_unreadable(file, (), {1: kind}) == reason


def test_encrypted_files_and_files_without_bounds() -> None:
    assert why_unreadable(data_file("f", 1, key_metadata=b"k"), (), {}) == "is encrypted"
    assert why_unreadable(data_file("f", 1, file_format="ORC"), (), {1: "timestamp"}) is None


def test_the_other_files_are_merged(java_tables: JavaTables, tmp_path: Path) -> None:
    fields = [
        {"id": 1, "name": "id", "type": "int", "required": True},
        {"id": 2, "name": "at", "type": "timestamp", "required": False},
    ]
    schema = {"type": "struct", "schema-id": 0, "fields": fields}
    spec = {"spec-id": 0, "fields": []}
    java = java_tables.create(schema, spec, {"format-version": "2"}, tmp_path / "table")
    files = [
        java.data_file([{"1": number, "2": datetime.datetime(year, 6, 1)}], 0, [], "orc")
        for number, year in enumerate((2020, 1500, 2021))
    ]
    java.append(files)
    table = registered_table(java.metadata_location, tmp_path)
    outcome = outcome_of(table.maintain(operations="compact"), Operation.COMPACT)
    assert outcome.status is Status.SUCCEEDED
    assert (
        outcome.summary
        == f"compacted 2 files into 1 (across 1 bins); left 1 file(s) alone: {files[1].location()} {FAR}"
    )
    again = outcome_of(table.maintain(operations="compact", rewrite_all="true"), Operation.COMPACT)
    assert again.metrics["compact.files_unsupported"] == 1
    assert len(table.live_files()) == 2
    java.take_over(table.metadata_location)
    everything = java_tables.jvm.org.apache.iceberg.expressions.Expressions.alwaysTrue()
    assert sorted(java.ids_where(everything)) == [0, 1, 2]
