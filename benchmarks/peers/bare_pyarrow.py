"""What anyone would write with pyarrow: stream every file into one writer, one process, row groups of full size."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.peers.serve import Answer, Task, serve

_ROW_GROUP_BYTES = 256 * 1024 * 1024
"""In memory; about what makes 128 MB of Parquet, Iceberg's default."""


def prepare(task: Task) -> Callable[[], Answer]:
    """Nothing to prepare but the imports."""
    output = Path(task["scratch"]) / "merged.parquet"

    def run() -> Answer:
        schema = pq.read_schema(task["data_files"][0])
        with pq.ParquetWriter(
            output, schema, compression="zstd", compression_level=3, store_decimal_as_integer=True
        ) as writer:
            pending: list[pa.Table] = []
            pending_bytes = 0
            for path in task["data_files"]:
                pending.append(pq.read_table(path, partitioning=None))
                pending_bytes += pending[-1].nbytes
                if pending_bytes >= _ROW_GROUP_BYTES:
                    _write(writer, pending)
                    pending_bytes = 0
            _write(writer, pending)
        return {"files": [str(output)]}

    return run


def _write(writer: pq.ParquetWriter, pending: list[pa.Table]) -> None:
    if pending:
        table = pa.concat_tables(pending)
        writer.write_table(table, row_group_size=table.num_rows)
        pending.clear()


if __name__ == "__main__":
    serve(prepare)
