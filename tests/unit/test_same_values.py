"""A column of another type than the table's is read only where its values are the same in it (rule 181)."""

from __future__ import annotations

from datetime import date, datetime, time
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from icekeeper.errors import TableUnsupported
from icekeeper.model import FileContent
from icekeeper.report.outcome import Status
from icekeeper.rows.project import Projection
from support.deletes import commit_deletes, compacted
from support.maintained_table import maintained_table

OTHER_VALUES = [
    (pa.bool_(), True, "long"),
    (pa.int32(), 1, "boolean"),
    (pa.string(), "1", "long"),
    (pa.int64(), 1, "string"),
    (pa.float64(), 0.1, "float"),
    (pa.int32(), 1, "double"),
    (pa.float64(), 1.0, "long"),
    (pa.float64(), 0.1, "decimal(9, 2)"),
    (pa.int32(), 1, "decimal(9, 2)"),
    (pa.decimal128(9, 2), Decimal("1.00"), "double"),
    (pa.timestamp("us"), datetime(2024, 2, 29, 1), "time"),
    (pa.timestamp("us"), datetime(2024, 2, 29), "date"),
    (pa.time64("us"), time(1), "timestamp"),
    (pa.dictionary(pa.int8(), pa.string()), "1", "long"),
]
SAME_VALUES = [
    (pa.null(), None, "long"),
    (pa.date32(), date(1970, 1, 2), "timestamp"),
    (pa.int64(), 86_400_000_000, "timestamp"),
    (pa.binary(), b"a", "string"),
    (pa.string_view(), "a", "binary"),
    (pa.float16(), 0.5, "float"),
    (pa.decimal32(9, 2), Decimal("-1.00"), "decimal(9, 2)"),
    (pa.dictionary(pa.int8(), pa.large_string()), "a", "string"),
]


def projection(source: pa.DataType, kind: str) -> Projection:
    field = pa.field("c", source, metadata={b"PARQUET:field_id": b"1"})
    fields = [{"id": 1, "name": "c", "required": False, "type": kind}]
    return Projection(pa.schema([field]), {"type": "struct", "fields": fields}, {}, None)


@pytest.mark.parametrize(("source", "value", "kind"), OTHER_VALUES, ids=str)
def test_what_arrow_would_cast_to_another_value_is_refused(source: pa.DataType, value: Any, kind: str) -> None:
    assert pa.scalar(value, source).is_valid
    with pytest.raises(TableUnsupported, match=r"column c is .* in a file, which cannot be read as"):
        projection(source, kind)


@pytest.mark.parametrize(("source", "value", "kind"), SAME_VALUES, ids=str)
def test_what_has_the_same_values_is_read(source: pa.DataType, value: Any, kind: str) -> None:
    column = pa.array([value], source) if not pa.types.is_dictionary(source) else pa.array([value]).cast(source)
    (read,) = projection(source, kind).apply(pa.record_batch([column], ["c"])).columns
    assert read.is_valid().to_pylist() == [value is not None]


def test_a_key_of_another_type_deletes_no_row(tmp_path: Path) -> None:
    """``true`` is no 1: Iceberg-Java deletes nothing by it, and we touch nothing."""
    with maintained_table(tmp_path) as table:
        table.create(properties={"format-version": "2"})
        table.fill(2)
        field = pa.field("id", pa.bool_(), metadata={b"PARQUET:field_id": b"1"})
        key = pa.table([pa.array([True])], schema=pa.schema([field]))
        commit_deletes(table, [(key, {"content": FileContent.EQUALITY_DELETES, "equality_ids": (1,), "partition": ()})])
        before = table.live_files()
        outcome = compacted(table)
        assert outcome.status is Status.SKIPPED
        assert "column id is bool in a file, which cannot be read as int64" in str(outcome.reason)
        assert table.live_files() == before
