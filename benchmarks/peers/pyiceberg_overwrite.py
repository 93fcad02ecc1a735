"""PyIceberg, which has no compaction: the whole table is read into memory, and overwritten with itself."""

from __future__ import annotations

from collections.abc import Callable

from pyiceberg.catalog import load_catalog

from benchmarks.peers.serve import Answer, Task, serve


def prepare(task: Task) -> Callable[[], Answer]:
    """Opens the catalog."""
    catalog = load_catalog("bench", **task["catalog"])

    def run() -> Answer:
        table = catalog.load_table(task["table"])
        # PyIceberg counts bytes in memory, not in the file: with the table's own target it leaves two files.
        table.metadata.properties["write.target-file-size-bytes"] = str(2**40)
        table.overwrite(table.scan().to_arrow())
        return {"metadata_location": table.metadata_location}

    return run


if __name__ == "__main__":
    serve(prepare)
