"""The same table read by three independent engines, in a comparable form."""

from __future__ import annotations

import datetime
import decimal
import math
import tempfile
import uuid
from collections.abc import Collection, Iterable, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

from pyiceberg.table import StaticTable

from icekeeper.demo.measure import TableChecksum, read_checksums
from support.duckdb_session import DuckDB, arrow_rows, shared_duckdb
from support.iceberg_java import IcebergJava

_DECIMALS = decimal.Context(prec=76)

CanonicalRows = list[tuple[tuple[str, str], ...]]


def canonical(rows: Iterable[Mapping[str, Any]]) -> CanonicalRows:
    """Return rows as a sorted multiset that is equal for every engine; columns may be in any order."""
    return sorted(tuple(sorted((name, _text(value)) for name, value in row.items())) for row in rows)


def pyiceberg_rows(
    metadata_location: str, snapshot_id: int | None = None, properties: Mapping[str, str] | None = None
) -> list[dict[str, Any]]:
    """Read with PyIceberg; ``properties`` configure its file I/O (a table on S3)."""
    table = StaticTable.from_metadata(metadata_location, dict(properties or {}))
    return arrow_rows(table.scan(snapshot_id=snapshot_id).to_arrow())


def pyiceberg_ids(metadata_location: str, snapshot_id: int | None = None) -> list[int]:
    """The ids as PyIceberg reads them, sorted."""
    return sorted(row["id"] for row in pyiceberg_rows(metadata_location, snapshot_id))


def duckdb_rows(
    metadata_location: str, snapshot_id: int | None = None, s3: Mapping[str, str] | None = None
) -> list[dict[str, Any]]:
    """Read with DuckDB: in the session of this process or, for a table on S3, in a new session."""
    if s3 is None:
        return shared_duckdb().rows(metadata_location, snapshot_id)
    with tempfile.TemporaryDirectory() as folder, closing(DuckDB(Path(folder), s3)) as session:
        return session.rows(metadata_location, snapshot_id)


def read_checksum(
    metadata_location: str, *, s3: Mapping[str, str] | None = None, snapshot_id: int | None = None
) -> TableChecksum:
    """Count and hash the rows of one snapshot with DuckDB."""
    (checksum,) = read_checksums([(metadata_location, snapshot_id)], s3=s3)
    return checksum


def rows_by_engine(
    metadata_location: str, java: IcebergJava, snapshot_id: int | None = None
) -> dict[str, CanonicalRows]:
    """Read a local table with all three; a test asserts that the values are equal."""
    return {
        "pyiceberg": canonical(pyiceberg_rows(metadata_location, snapshot_id)),
        "duckdb": canonical(duckdb_rows(metadata_location, snapshot_id)),
        "java": canonical(java.rows(metadata_location, snapshot_id)),
    }


def _text(value: Any) -> str:
    if isinstance(value, bool) or value is None:
        return repr(value)
    if isinstance(value, float):
        return "nan" if math.isnan(value) else repr(value + 0.0)  # -0.0 equals 0.0
    if isinstance(value, decimal.Decimal):
        # Spark adds trailing zeros to a tiny decimal.
        return format(value.normalize(_DECIMALS), "f") if value else "0"
    if isinstance(value, datetime.datetime):  # Spark returns local time without a zone: conftest makes that UTC
        return (value.astimezone(datetime.UTC).replace(tzinfo=None) if value.tzinfo else value).isoformat()
    if isinstance(value, bytes | bytearray | memoryview):
        return "x" + bytes(value).hex()
    if isinstance(value, uuid.UUID | datetime.date | datetime.time):
        return str(value)
    if isinstance(value, Mapping):
        return _pairs(value.items())
    if isinstance(value, list | tuple):
        if value and all(isinstance(item, tuple) and len(item) == 2 for item in value):
            return _pairs(value)  # Arrow's form of a map
        return "[" + ",".join(_text(item) for item in value) + "]"
    return str(value)


def _pairs(items: Collection[tuple[Any, Any]]) -> str:
    if not items:
        return "[]"  # Arrow's form of an empty map equals an empty list
    return "{" + ",".join(sorted(f"{_text(key)}:{_text(value)}" for key, value in items)) + "}"
