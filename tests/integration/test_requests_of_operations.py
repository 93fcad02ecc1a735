"""How many requests each operation of a pass sends to a store, and not one more (rule 156, rule 157)."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.catalog import load_catalog

from icekeeper.catalogs.load import connect
from icekeeper.demo.seaweedfs import SeaweedFSServer
from icekeeper.engines.local_engine import LocalEngine
from icekeeper.maintenance import run_pass
from icekeeper.maintenance.run_operation import run_operation
from icekeeper.model import TableName
from icekeeper.runtime import Runtime
from icekeeper.state.sqlite.store import SqliteStateStore
from support.maintained_table import EAGER
from support.proxies import CountingProxy, counting_proxy

FILES = 6
MIB = 1 << 20


def kind_of(path: str) -> str:
    name = path.partition("?")[0].rpartition("/")[2]
    if name.endswith(".parquet"):
        return "data"
    if name.startswith("snap-"):
        return "manifest list"
    return "metadata" if name.endswith(".json") else "manifest" if name.endswith(".avro") else "other"


def sent(store: CountingProxy, stage: str) -> dict[str, int]:
    found = Counter(f"{one.kind} {kind_of(one.path)}" for one in store.requests if one.stage == stage)
    return dict(sorted(found.items()))


def test_each_operation_sends_what_it_needs(
    seaweedfs: SeaweedFSServer, table_bucket: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seaweedfs.client("s3").create_bucket(Bucket="counted")
    files = {key: value for key, value in table_bucket.items() if key.startswith("s3.")}
    properties = {**files, "type": "sql", "uri": f"sqlite:///{tmp_path}/catalog.db", "warehouse": "s3://counted/w"}
    writer = load_catalog("writer", **properties)
    writer.create_namespace("ns")
    count = 3 * MIB // 8
    rows = pa.table({"id": pa.Array.from_buffers(pa.int64(), count, [None, pa.py_buffer(os.urandom(8 * count))])})
    table = writer.create_table("ns.t", rows.schema)
    for _ in range(FILES):
        table.append(rows)

    with counting_proxy(seaweedfs.s3_endpoint) as store:

        def staged(operation: Any, *arguments: Any, **options: Any) -> Any:
            store.stage = operation.value
            try:
                return run_operation(operation, *arguments, **options)
            finally:
                store.stage = "between"

        monkeypatch.setattr(run_pass, "run_operation", staged)
        ours = connect("writer", {**properties, "s3.endpoint": store.address})
        runtime = Runtime(ours, SqliteStateStore(tmp_path / "state.db"), environment={})
        outcome = runtime.maintain(TableName(("ns",), "t"), EAGER, LocalEngine(1), unsafe=True)

    assert outcome.metrics["compact.files_merged"] == FILES
    found = {stage: sent(store, stage) for stage in dict.fromkeys(one.stage for one in store.requests)}
    assert found == {
        # What begins the pass: the head, and where all new files lie.
        "": {"GET manifest": FILES, "GET manifest list": FILES, "GET metadata": 1},
        # Each input at once, and the end of what was written (rule 32).
        "compact": {
            "GET data": FILES + 1,
            "PUT data": 1,
            "PUT manifest": 2,
            "PUT manifest list": 1,
            "PUT metadata": 1,
        },
        # What compaction wrote is read back by who needs it first (rule 133).
        "rewrite_position_deletes": {"GET manifest list": 1, "GET metadata": 1},
        "expire_snapshots": {
            "DELETE_MANY other": 2,
            "GET manifest": 2,
            "GET metadata": 1,
            "LIST other": 4,
            "PUT metadata": 1,
        },
        "remove_orphans": {"LIST other": 1},
        "rewrite_manifests": {"PUT manifest": 1, "PUT manifest list": 1, "PUT metadata": 1},
    }
