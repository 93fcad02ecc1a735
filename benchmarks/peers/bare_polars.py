"""polars as a bare reader and writer: a streaming scan of all files into one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import polars as pl  # type: ignore[import-not-found]  # installed in the peers' environment only

from benchmarks.peers.serve import Answer, Task, serve


def prepare(task: Task) -> Callable[[], Answer]:
    """Nothing to prepare but the imports."""
    output = Path(task["scratch"]) / "merged.parquet"

    def run() -> Answer:
        pl.scan_parquet(task["data_files"]).sink_parquet(output, compression="zstd", compression_level=3)
        return {"files": [str(output)]}

    return run


if __name__ == "__main__":
    serve(prepare)
