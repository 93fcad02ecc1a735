"""Runs a row on a table bucket: what a pass of ours costs there in requests and bytes besides time, and the peer's."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from typing import Any

from benchmarks.contestants import CONTESTANTS
from benchmarks.measure import Contestant, ContestantFailed, Cost
from benchmarks.proof import Expected, expected_rows, live_bytes, prove
from benchmarks.row import Row
from benchmarks.run_rows import RowFound, Ways
from benchmarks.tables.datasets import dataset
from benchmarks.tables.kept_table import KeptTable
from benchmarks.tables.stored_table import Store, running_store
from benchmarks.turns import MOST_ROUNDS, Found, rounds_for, take_turns, warm

_ROOM = 3
"""Times the table's bytes that the server must be able to store for every run."""
_MOST_WARM_UPS = 3
"""Each leaves a table in the store."""
_ROOT = str(Path(__file__).parents[1])


def run_store_row(row: Row, scale: float, ways: Ways) -> RowFound:
    """Measure one row; every run has a table of its own, which is put into the store before."""
    assert row.store_delay_ms is not None
    source, small = dataset(ways.work, row.dataset, scale), dataset(ways.work, *row.warm_up)
    rows = expected_rows(source.metadata_location)
    found = {name: Found() for name in row.entrants if name not in ways.without}
    running: dict[str, Contestant] = {}
    scratch = ways.work / "scratch"
    shutil.rmtree(scratch, ignore_errors=True)
    room = (256 << 20) + _ROOM * len(found) * (MOST_ROUNDS + _MOST_WARM_UPS) * source.data_bytes
    with running_store(row.store_delay_ms, room) as store:
        expected = Expected(rows, source.data_bytes, row.most_files, s3=store.properties)

        def one_run(name: str, contestant: Contestant) -> tuple[Cost, str, dict[str, float]]:
            cost, answer, more = _one_run(name, contestant, row, source, store, ways)
            proof = prove("table", answer, expected)
            left = live_bytes(answer["metadata_location"], store.properties)
            return cost, proof, {**more, "output_ratio": left / source.data_bytes}

        def one_cost(name: str, contestant: Contestant) -> Cost:
            return _one_run(name, contestant, row, source, store, ways)[0]

        try:
            for name, entry in found.items():
                try:
                    running[name] = _started(name, ways)
                    _one_run(name, running[name], row, small, store, ways)
                except ContestantFailed as error:
                    entry.error = str(error)
                    ways.say(f"  {CONTESTANTS[name].title}: {entry.error}")
                    if name in running:
                        running.pop(name).close()
            total_s = warm(running, found, one_cost, ways.say, _MOST_WARM_UPS)
            rounds = ways.rounds or rounds_for(total_s)
            take_turns(running, found, rounds, one_run, ways.say)
        finally:
            for contestant in running.values():
                contestant.close()
            shutil.rmtree(scratch, ignore_errors=True)
    data = {"files": len(source.data_files), "bytes": source.data_bytes, "rows": rows.rows}
    return RowFound(row, scale, data, found, rounds)


def _started(name: str, ways: Ways) -> Contestant:
    """The contestant in Icekeeper's own environment; what it prints goes to a log of its own."""
    log = ways.work / "logs" / f"{name}.log"
    log.parent.mkdir(exist_ok=True)
    command = [sys.executable, "-m", f"benchmarks.peers.{CONTESTANTS[name].module}"]
    return Contestant(command, {**os.environ, "PYTHONPATH": _ROOT}, log)


def _one_run(
    name: str, contestant: Contestant, row: Row, source: KeptTable, store: Store, ways: Ways
) -> tuple[Cost, dict[str, Any], dict[str, float]]:
    """The cost, the answer, and what passed the proxy where there is one."""
    table = store.new_table(source)
    task = {
        "operation": row.operation,
        "catalog": store.delayed,
        "table": table,
        "worker": store.worker,
        "scratch": str(ways.work / "scratch"),
        "settings": dict(row.settings),
        **row.task,
        **CONTESTANTS[name].task,
    }
    if store.proxy is not None:
        store.proxy.counts()
    cost, answer = contestant.run(task)
    more = {}
    if store.proxy is not None:
        requests, size = store.proxy.counts()
        more = {"requests": float(requests), "store_mb": size / 1e6, "bytes_ratio": size / source.data_bytes}
    # What the store says, not what the contestant says: a worker of the store knows no location.
    answer["metadata_location"] = store.catalog.load_table(table).metadata_location
    return cost, answer, more
