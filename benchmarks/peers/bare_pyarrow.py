"""What anyone would write with pyarrow: stream every file into one writer, one process, row groups of full size."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import ExitStack
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


def merge(tables: Iterable[pa.Table], sink: Any) -> None:
    """Write all tables, of one schema, to one file."""
    with ExitStack() as opened:
        writer: pq.ParquetWriter | None = None
        pending: list[pa.Table] = []
        pending_bytes = 0
        for table in tables:
            if writer is None:
                options = {"compression": "zstd", "compression_level": 3, "store_decimal_as_integer": True}
                writer = opened.enter_context(pq.ParquetWriter(sink, table.schema, **options))
            pending.append(table)
            pending_bytes += table.nbytes
            if pending_bytes >= _ROW_GROUP_BYTES:
                _write(writer, pending)
                pending_bytes = 0
        if writer is not None and pending:
            _write(writer, pending)


def _write(writer: pq.ParquetWriter, pending: list[pa.Table]) -> None:
    table = pa.concat_tables(pending)
    writer.write_table(table, row_group_size=table.num_rows)
    pending.clear()


if __name__ == "__main__":
    serve(prepare)
