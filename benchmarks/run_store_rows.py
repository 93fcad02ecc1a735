"""Runs a row on a table bucket: what a pass of ours costs there in requests and bytes besides time, and the peer's."""

from __future__ import annotations

import shutil
from contextlib import closing
from dataclasses import dataclass
from typing import Any

from benchmarks.contestants import CONTESTANTS
from benchmarks.measure import Contestant, ContestantFailed, Cost
from benchmarks.peers.rest_catalog import RestCatalogServer
from benchmarks.proof import Expected, expected_rows, live_bytes, prove
from benchmarks.row import Row
from benchmarks.run_rows import RowFound, Ways, program
from benchmarks.tables.datasets import dataset
from benchmarks.tables.kept_table import KeptTable
from benchmarks.tables.stored_table import BUCKET, Store, running_store
from benchmarks.turns import MOST_ROUNDS, Found, rounds_for, take_turns, warm

_ROOM = 3
"""Times the table's bytes that the server must be able to store for every run."""
_MOST_WARM_UPS = 3
"""Each leaves a table in the store."""
_OF_REST = frozenset({"iceberg_java", "iceberg_compaction"})
"""Modules of contestants that cannot sign requests to the table bucket's catalog, and use the suite's."""


@dataclass(frozen=True, slots=True)
class _Tables:
    """The store, and the suite's REST catalog of its tables."""

    store: Store
    rest: RestCatalogServer
    ways: Ways


def _rest(ways: Ways, store: Store) -> RestCatalogServer:
    access = {key: value for key, value in store.properties.items() if key.startswith("s3.")}
    return RestCatalogServer(ways.work / "rest-store", {**access, "warehouse": f"s3://{BUCKET}"})


def run_store_row(row: Row, scale: float, ways: Ways) -> RowFound:
    """Measure one row; every run has a table of its own, which is put into the store before."""
    assert row.store_delay_ms is not None
    source, small = dataset(ways.work, row.dataset, scale), dataset(ways.work, *row.warm_up)
    rows = expected_rows(source.metadata_location)
    found = {name: Found() for name in ways.names(row)}
    running: dict[str, Contestant] = {}
    scratch = ways.work / "scratch"
    shutil.rmtree(scratch, ignore_errors=True)
    room = (256 << 20) + _ROOM * len(found) * ((ways.rounds or MOST_ROUNDS) + _MOST_WARM_UPS) * source.data_bytes
    with running_store(row.store_delay_ms, room) as store, closing(_rest(ways, store)) as rest:
        tables = _Tables(store, rest, ways)
        expected = Expected(rows, source.data_bytes, row.most_files, s3=store.properties)

        def one_run(name: str, contestant: Contestant) -> tuple[Cost, str, dict[str, float]]:
            cost, answer, more = _one_run(name, contestant, row, source, tables)
            proof = prove(CONTESTANTS[name].proof, answer, expected)
            if CONTESTANTS[name].proof == "table":
                left = live_bytes(answer["metadata_location"], store.properties)
                more["output_ratio"] = left / source.data_bytes
            return cost, proof, more

        def one_cost(name: str, contestant: Contestant) -> Cost:
            return _one_run(name, contestant, row, source, tables)[0]

        try:
            for name, entry in found.items():
                try:
                    running[name] = _started(name, ways)
                    _one_run(name, running[name], row, small, tables)
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
    """The contestant in its environment; what it prints goes to a log of its own."""
    return Contestant(*program(CONTESTANTS[name], ways), ways.work / "logs" / f"{name}.log")


def _one_run(
    name: str, contestant: Contestant, row: Row, source: KeptTable, tables: _Tables
) -> tuple[Cost, dict[str, Any], dict[str, float]]:
    """The cost, the answer, and what passed the proxy where there is one."""
    store, ways = tables.store, tables.ways
    table = store.new_table(source)
    loaded = store.catalog.load_table(table)
    is_of_rest = CONTESTANTS[name].module in _OF_REST
    task = {
        "operation": row.operation,
        "catalog": store.delayed,
        "table": table,
        "location": loaded.location(),
        "data_files": [f"{loaded.location()}/data/{path.name}" for path in source.data_files],
        "warehouse": str(ways.work / "warehouse"),
        "rest_uri": tables.rest.uri,
        "rest_table": tables.rest.register(loaded.metadata_location) if is_of_rest else "",
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
    # What the catalog says, not what the contestant says: a worker of the store knows no location.
    answer["metadata_location"] = (
        tables.rest.metadata_location(task["rest_table"])
        if is_of_rest
        else store.catalog.load_table(table).metadata_location
    )
    return cost, answer, more
