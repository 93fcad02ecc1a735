"""Runs a row on a table bucket: what a pass of ours costs there in requests and bytes besides time."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from benchmarks.contestants import CONTESTANTS
from benchmarks.measure import Contestant, ContestantFailed, Cost
from benchmarks.proof import Expected, NotProven, expected_rows, prove
from benchmarks.row import Row
from benchmarks.run_rows import Found, RowFound, Ways
from benchmarks.tables.datasets import dataset
from benchmarks.tables.kept_table import KeptTable
from benchmarks.tables.stored_table import Store, running_store

__all__ = ["run_store_row"]

_ROOM = 8
"""Times the table's bytes that the server must be able to store."""


def run_store_row(row: Row, scale: float, ways: Ways) -> RowFound:
    """Measure one row; every run has a table of its own, which is put into the store before."""
    assert row.store_delay_ms is not None
    source, small = dataset(ways.work, row.dataset, scale), dataset(ways.work, *row.warm_up)
    rows = expected_rows(source.metadata_location)
    found = {name: Found() for name in row.entrants if name not in ways.without}
    room = (256 << 20) + _ROOM * len(found) * ways.rounds * source.data_bytes
    with running_store(row.store_delay_ms, room) as store:
        expected = Expected(rows, source.data_bytes, row.most_files, s3=store.properties)
        for name, entry in found.items():
            log = ways.work / "logs" / f"{name}.log"
            log.parent.mkdir(exist_ok=True)
            module = f"benchmarks.peers.{CONTESTANTS[name].module}"
            contestant = None
            try:
                contestant = Contestant([sys.executable, "-m", module], {**os.environ, "PYTHONPATH": _ROOT}, log)
                _one_run(name, contestant, row, small, store, ways)
                for _ in range(ways.rounds):
                    cost, answer, entry.more = _one_run(name, contestant, row, source, store, ways)
                    entry.proof = prove("table", answer, expected)
                    entry.more["bytes_ratio"] = entry.more["store_mb"] * 1e6 / source.data_bytes
                    entry.costs.append(cost)
                    ways.say(f"  {CONTESTANTS[name].title:28} {cost.wall_s:7.2f} s {entry.more}")
            except (ContestantFailed, NotProven) as error:
                entry.error, entry.costs[:] = str(error), []
                ways.say(f"  {CONTESTANTS[name].title}: {entry.error}")
            finally:
                if contestant is not None:
                    contestant.close()
    return RowFound(row, scale, {"files": len(source.data_files), "bytes": source.data_bytes, "rows": rows.rows}, found)


_ROOT = str(Path(__file__).parents[1])


def _one_run(
    name: str, contestant: Contestant, row: Row, source: KeptTable, store: Store, ways: Ways
) -> tuple[Cost, dict[str, str], dict[str, float]]:
    """The cost, the answer, and what passed the proxy."""
    task = {
        "operation": row.operation,
        "catalog": store.delayed,
        "table": store.new_table(source),
        "scratch": str(ways.work / "scratch"),
        "settings": dict(row.settings),
        **row.task,
        **CONTESTANTS[name].task,
    }
    store.proxy.counts()
    cost, answer = contestant.run(task)
    requests, size = store.proxy.counts()
    return cost, answer, {"requests": float(requests), "store_mb": size / 1e6}
