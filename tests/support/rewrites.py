"""A rewrite of a single file group: files made from Arrow tables, a task, its result."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from icekeeper.model import DataFile
from icekeeper.operations.compaction.terms.output_names import OutputNames
from icekeeper.operations.compaction.terms.rewrite_task import RewriteResult, RewriteTask
from icekeeper.operations.compaction.work.rewrite import rewrite_group
from icekeeper.rows.arrow_schema import arrow_schema
from icekeeper.rows.read_task import InputFile


def struct(*fields: tuple[Any, ...]) -> dict[str, Any]:
    """An Iceberg struct of ``(id, name, type)`` or ``(id, name, type, more)``; optional unless ``more`` says so."""
    return {
        "type": "struct",
        "fields": [
            {"id": field[0], "name": field[1], "type": field[2], "required": False, **(field[3] if field[3:] else {})}
            for field in fields
        ],
    }


def input_file(path: Path, table: pa.Table) -> InputFile:
    """Write a table as a Parquet file without changes."""
    pq.write_table(table, path)
    return InputFile(str(path), table.num_rows, path.stat().st_size)


def rows(schema: Mapping[str, Any], values: Mapping[str, Sequence[Any]]) -> pa.Table:
    """A table of columns by name, with the Arrow types and field ids of an Iceberg schema."""
    target = arrow_schema(schema)
    arrays = []
    for field in target:
        kind = field.type.storage_type if isinstance(field.type, pa.BaseExtensionType) else field.type
        array = pa.array(values[field.name], kind)
        is_plain = array.type == field.type
        arrays.append(array if is_plain else pa.ExtensionArray.from_storage(field.type, array))
    return pa.Table.from_arrays(arrays, schema=target)


def task(schema: Mapping[str, Any], inputs: Sequence[InputFile], folder: Path, **more: Any) -> RewriteTask:
    """A task that writes ``out-00000-a0.parquet`` into the folder; table properties by their names after ``write.``."""
    made = RewriteTask(
        group_id=0,
        inputs=tuple(inputs),
        schema=schema,
        partition=(),
        outputs=OutputNames(str(folder), "out"),
        table_properties={},
        io_properties={},
    )
    return replace(made, **more)


def rewritten(schema: Mapping[str, Any], tables: Sequence[pa.Table], folder: Path, **more: Any) -> RewriteResult:
    """Write each table to a file and merge the files."""
    inputs = [input_file(folder / f"in-{number}.parquet", table) for number, table in enumerate(tables)]
    return rewrite_group(task(schema, inputs, folder, **more))


def written(result: RewriteResult) -> DataFile:
    """The only file of a successful rewrite."""
    assert result.error is None, result.error
    (file,) = result.written
    return file
