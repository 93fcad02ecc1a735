"""What anyone would write with pyarrow: stream every file into one writer, one process, row groups of full size."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.peers.serve import Answer, Task, serve

_ROW_GROUP_BYTES = 256 * 1024 * 1024
"""In memory; about what makes 128 MB of Parquet, Iceberg's default."""


def prepare(task: Task) -> Callable[[], Answer]:
    """Nothing to prepare but the imports."""
    output = Path(task["scratch"]) / "merged.parquet"

    def run() -> Answer:
        merge((pq.read_table(path, partitioning=None) for path in task["data_files"]), output)
        return {"files": [str(output)]}

    return run


def merge(tables: Iterator[pa.Table], sink: Any) -> None:
    """Write all tables (at least one, with the same schema) to a single file."""
    first = next(tables)
    options = {"compression": "zstd", "compression_level": 3, "store_decimal_as_integer": True}
    with pq.ParquetWriter(sink, first.schema, **options) as writer:
        pending: list[pa.Table] = []
        pending_bytes = 0
        for table in chain([first], tables):
            pending.append(table)
            pending_bytes += table.nbytes
            if pending_bytes >= _ROW_GROUP_BYTES:
                _write(writer, pending)
                pending_bytes = 0
        if pending:
            _write(writer, pending)


def _write(writer: pq.ParquetWriter, pending: list[pa.Table]) -> None:
    table = pa.concat_tables(pending)
    writer.write_table(table, row_group_size=table.num_rows)
    pending.clear()


if __name__ == "__main__":
    serve(prepare)
