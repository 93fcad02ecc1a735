"""Runs in the judges' environment: a reader answers all queries on all tables, or a writer makes Parquet files.

The task is a JSON document on standard input; the answers are the last line of standard output.  This module imports
neither this project nor the environment of the tests.
"""

from __future__ import annotations

import datetime
import decimal
import json
import os
import sys
import tempfile
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

__all__: list[str] = []

Task = Mapping[str, Any]
Ask = Callable[[str], list[dict[str, Any]]]
"""Returns the rows that a query on the table ``t`` finds."""


def iceberg_rust(table: Task) -> Ask:
    """iceberg-rust's table provider in DataFusion."""
    from datafusion import SessionContext  # type: ignore[import-not-found]
    from pyiceberg_core.datafusion import IcebergDataFusionTable  # type: ignore[import-not-found]

    context = SessionContext()
    location = f"file://{table['metadata']}"
    provider = IcebergDataFusionTable(identifier=["ns", "t"], metadata_location=location, file_io_properties={})
    context.register_table("t", provider)
    return lambda sql: context.sql(sql).to_arrow_table().to_pylist()


def datafusion(table: Task) -> Ask:
    """DataFusion alone, on the data files, with pruning by footers and page indexes."""
    from datafusion import SessionConfig, SessionContext

    folder = Path(tempfile.mkdtemp(dir=table["folder"]))
    for number, path in enumerate(table["data"]):
        os.link(path, folder / f"{number}.parquet")
    context = SessionContext(SessionConfig({"datafusion.execution.parquet.pushdown_filters": "true"}))
    # Each writer declares an Arrow type for texts; a table needs a single type.  Without the metadata of fields,
    # filters on columns in structs find all rows, in files of any writer.
    schema = context.read_parquet(str(folder / "0.parquet"), skip_metadata=False).schema()
    context.register_parquet("t", f"{folder}/", schema=schema, skip_metadata=False)
    return lambda sql: context.sql(sql).to_arrow_table().to_pylist()


def polars(table: Task) -> Ask:
    """polars' native reader, with its planner in Rust."""
    import polars as pl  # type: ignore[import-not-found]

    context = pl.SQLContext(t=pl.scan_iceberg(table["metadata"], reader_override="native"))
    return lambda sql: context.execute(sql).collect().to_arrow().to_pylist()


def chdb(table: Task) -> Ask:
    """ClickHouse, which reads only below the working folder; its table function would open the table for each query."""
    from chdb.session import Session  # type: ignore[import-not-found]

    session = Session(":memory:")
    metadata = Path(table["metadata"]).relative_to(table["folder"])
    session.query("DROP TABLE IF EXISTS t")
    session.query(
        f"CREATE TABLE t ENGINE = IcebergLocal('{table['folder']}/') SETTINGS iceberg_metadata_file_path = '{metadata}'"
    )
    return lambda sql: session.query(f"{sql} SETTINGS max_threads = 1", "ArrowTable").to_pylist()


READERS: dict[str, Callable[[Task], Ask]] = {
    "iceberg-rust": iceberg_rust,
    "datafusion": datafusion,
    "polars": polars,
    "chdb": chdb,
}


def read(task: Task) -> dict[str, dict[str, Any]]:
    """The rows as lists, or the error as text, by table and query."""
    answers: dict[str, dict[str, Any]] = {}
    for table in task["tables"]:
        found = answers[table["name"]] = {}
        ask: Ask | None = None
        for name, sql in task["questions"].items():
            try:
                ask = ask or READERS[task["reader"]](table)
                found[name] = [[plain(value) for value in row.values()] for row in ask(sql)]
            except Exception as error:
                found[name] = f"{type(error).__name__}: {error}"[:500]
    return answers


def plain(value: Any) -> Any:
    """A value in a JSON form that does not depend on the reader."""
    if isinstance(value, float):
        return "nan" if value != value else repr(value + 0.0)  # -0.0 equals 0.0
    if isinstance(value, decimal.Decimal):
        return f"{value:.2f}"
    if isinstance(value, datetime.datetime):
        return (value.astimezone(datetime.UTC).replace(tzinfo=None) if value.tzinfo else value).isoformat()
    if isinstance(value, datetime.date | datetime.time):
        return value.isoformat()
    if isinstance(value, bytes | bytearray):
        return value.hex()
    if isinstance(value, uuid.UUID):
        return str(value)
    if isinstance(value, dict):
        return [plain(item) for item in value.values()]
    return [plain(item) for item in value] if isinstance(value, list | tuple) else value


def duckdb_2(source: str, path: str) -> None:
    """``COPY`` of DuckDB 2."""
    import duckdb
    import pyarrow.feather

    table = pyarrow.feather.read_table(source)
    connection = duckdb.connect()
    connection.register("rows", table)
    options = f"FORMAT parquet, COMPRESSION zstd, FIELD_IDS {{{_ids(table.schema)}}}, ROW_GROUP_SIZE 2048"
    connection.execute(f"SET timezone = 'UTC'; COPY (SELECT * FROM rows) TO '{path}' ({options})")


def _ids(fields: Any) -> str:
    """Field ids as DuckDB wants them."""
    found = []
    for field in fields:
        own, inner = field.metadata[b"PARQUET:field_id"].decode(), _fields_in(field.type)
        found.append(f"{field.name}: {{__duckdb_field_id: {own}, {_ids(inner)}}}" if inner else f"{field.name}: {own}")
    return ", ".join(found)


def _fields_in(kind: Any) -> list[Any]:
    return [kind.field(number) for number in range(kind.num_fields)]


def rust(source: str, path: str) -> None:
    """DataFusion's writer, which is that of arrow-rs."""
    import pyarrow.feather
    from datafusion import SessionContext

    folder = Path(tempfile.mkdtemp(dir=Path(path).parent))
    SessionContext().from_arrow(pyarrow.feather.read_table(source)).write_parquet(folder, "zstd", 3)
    (made,) = folder.glob("*.parquet")
    made.rename(path)


def polars_writer(source: str, path: str) -> None:
    """polars' native writer, which takes field ids from an Arrow schema with its text type."""
    import polars as pl
    import pyarrow as pa
    import pyarrow.feather

    def own(field: Any) -> Any:
        if pa.types.is_list(field.type):
            return field.with_type(pa.large_list(own(field.type.value_field)))
        return field.with_type(pa.string_view()) if pa.types.is_string(field.type) else field

    table = pyarrow.feather.read_table(source)
    schema = pa.schema([own(field) for field in table.schema])
    pl.from_arrow(table).write_parquet(path, arrow_schema=schema, compression="zstd", row_group_size=100)


WRITERS: dict[str, Callable[[str, str], None]] = {"duckdb 2": duckdb_2, "rust": rust, "polars": polars_writer}


def main() -> None:
    task = json.load(sys.stdin)
    if "reader" in task:
        answers = read(task)
    else:
        answers = {}
        for writer, source, path in task["files"]:
            WRITERS[writer](source, path)
    print("\n" + json.dumps(answers))


if __name__ == "__main__":
    main()
