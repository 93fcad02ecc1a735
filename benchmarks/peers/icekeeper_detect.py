"""Icekeeper's detection over a fleet, as a function does it: four catalogs, a SQLite state, sixteen threads."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from functools import partial
from pathlib import Path

from benchmarks.peers.serve import Answer, Task, serve
from benchmarks.tables.fleet import CATALOGS, NOW_MS, catalog_properties
from icekeeper.catalogs.load import open_catalog
from icekeeper.detection.detect import detect
from icekeeper.detection.list_tables import CatalogSource
from icekeeper.machine.clock import HOUR_MS
from icekeeper.pass_context.table_policy import TablePolicies
from icekeeper.state.sqlite.store import SqliteStateStore

_THREADS = 16
_number = itertools.count()


def prepare(task: Task) -> Callable[[], Answer]:
    """A new state; ``seen``: every table was looked at once before."""
    folder = Path(task["table_folder"])
    scratch = Path(task["scratch"]) / f"detect-{next(_number)}"
    scratch.mkdir(parents=True)
    state = SqliteStateStore(scratch / "state.db")

    def run() -> Answer:
        sources = [
            CatalogSource(f"c{n}", partial(open_catalog, f"c{n}", catalog_properties(folder, n)))
            for n in range(CATALOGS)
        ]
        report = detect(sources, state, TablePolicies({}), clock=lambda: NOW_MS + HOUR_MS, threads=_THREADS)
        if report.errors:
            raise RuntimeError(f"{report.errors} table(s) or catalog(s) could not be looked at")
        return {"planned": report.scanned, "summary": f"{len(report.proposals)} proposals"}

    if task.get("seen"):
        run()
    return run


if __name__ == "__main__":
    serve(prepare)
