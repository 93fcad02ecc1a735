"""DuckDB as a bare reader and writer: ``COPY`` of all files into one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import duckdb

from benchmarks.peers.serve import Answer, Task, serve


def prepare(task: Task) -> Callable[[], Answer]:
    """Opens the database in memory."""
    output = Path(task["scratch"]) / "merged.parquet"
    connection = duckdb.connect()
    connection.execute("SET preserve_insertion_order = false")
    connection.execute("SET TimeZone = 'UTC'")
    files = ", ".join(f"'{path}'" for path in task["data_files"])

    def run() -> Answer:
        connection.execute(
            f"COPY (SELECT * FROM read_parquet([{files}])) TO '{output}' "
            "(FORMAT parquet, COMPRESSION zstd, COMPRESSION_LEVEL 3)"
        )
        return {"files": [str(output)]}

    return run


if __name__ == "__main__":
    serve(prepare)
