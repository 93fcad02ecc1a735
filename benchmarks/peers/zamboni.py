"""``iceberg-zamboni``: PyIceberg for metadata, DuckDB for sorting; a SQL catalog over SQLite, two threads."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path

from pyiceberg.catalog.sql import SqlCatalog
from zamboni.compactor import TableCompactor  # type: ignore[import-not-found]  # in the peers' environment only
from zamboni.config import CompactionConfig  # type: ignore[import-not-found]
from zamboni.session import CatalogSession  # type: ignore[import-not-found]

from benchmarks.peers.serve import Answer, Task, serve

_number = itertools.count()
_THREADS = 2


def prepare(task: Task) -> Callable[[], Answer]:
    """Registers the table in a new catalog."""
    if task["operation"] not in ("compact", "sort"):
        raise ValueError(f"the suite does not drive iceberg-zamboni's {task['operation']}")
    folder = Path(task["scratch"]) / f"zamboni-{next(_number)}"
    folder.mkdir(parents=True)
    catalog = SqlCatalog("bench", uri=f"sqlite:///{folder / 'catalog.db'}", warehouse=folder.as_uri())
    catalog.create_namespace("ns")
    catalog.register_table("ns.t", task["metadata_location"])
    session = CatalogSession.from_catalog(catalog, threads=_THREADS)
    order = ", ".join(f'"{column}"' for column in task["columns"]) if task["operation"] == "sort" else None
    config = CompactionConfig(target_file_size_bytes=int(task["target_bytes"]), rewrite_all=True, sort_expression=order)
    compactor = TableCompactor(session, "ns.t", config)

    def run() -> Answer:
        result = compactor.execute()
        location = catalog.load_table("ns.t").metadata_location
        return {"metadata_location": location, "summary": result.describe()}

    return run


if __name__ == "__main__":
    serve(prepare)
