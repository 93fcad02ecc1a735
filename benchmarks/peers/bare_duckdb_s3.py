"""DuckDB as a bare reader and writer on S3, with the extension of Icekeeper's own environment."""

from __future__ import annotations

from collections.abc import Callable

from benchmarks.peers.serve import Answer, Task, serve
from icekeeper.demo.duckdb_child import connect


def prepare(task: Task) -> Callable[[], Answer]:
    """Opens the database in memory."""
    connection = connect(task["catalog"])
    output = f"{task['location']}/data/merged.parquet"
    files = ", ".join(f"'{path}'" for path in task["data_files"])

    def run() -> Answer:
        connection.execute(
            f"COPY (SELECT * FROM read_parquet([{files}])) TO '{output}' "
            "(FORMAT parquet, COMPRESSION zstd, COMPRESSION_LEVEL 3)"
        )
        return {"files": [output]}

    return run


if __name__ == "__main__":
    serve(prepare)
