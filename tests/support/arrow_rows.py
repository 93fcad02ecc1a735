"""The rows of an Arrow table as dictionaries."""

from __future__ import annotations

from typing import Any

import pyarrow as pa


def arrow_rows(table: pa.Table) -> list[dict[str, Any]]:
    """Return dictionaries; nanosecond timestamps as integers, because Python has no type for them."""
    for index, field in enumerate(table.schema):
        if pa.types.is_timestamp(field.type) and field.type.unit == "ns":
            table = table.set_column(index, field.name, table.column(index).cast(pa.int64()))
    rows: list[dict[str, Any]] = table.to_pylist()
    return rows
