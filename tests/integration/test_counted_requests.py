"""The requests that a pass tells of are those that go over the wire, and no more than it needs (platform 50)."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.catalog import load_catalog

from icekeeper.catalogs.load import connect
from icekeeper.demo.seaweedfs import SeaweedFSServer
from icekeeper.engines.local_engine import LocalEngine
from icekeeper.machine.metering import RequestKind, counting
from icekeeper.model import TableName
from icekeeper.runtime import Runtime
from icekeeper.state.sqlite.store import SqliteStateStore
from icekeeper.storage.storage import Storage
from support.maintained_table import EAGER
from support.proxies import CountingProxy, counting_proxy

FILES = 6
MIB = 1 << 20
# What a pass sends beyond one request for each data file, manifest and manifest list that it finds.
MORE = 40


def told(metrics: dict[str, Any]) -> Counter[str]:
    """How many requests of each kind the metrics of a pass name."""
    found: Counter[str] = Counter()
    for key, value in metrics.items():
        name = key.partition(".")[2]
        if name.endswith("_requests"):
            found[name.removesuffix("_requests")] += value
    return found


def on_the_wire(store: CountingProxy, catalog: CountingProxy | None) -> Counter[str]:
    """How many requests of each kind were sent; PUT, POST and LIST cost the same."""
    kinds = {"GET": "get", "HEAD": "get", "DELETE": "delete", "DELETE_MANY": "delete"}  # a batch is a POST
    found = Counter(kinds.get(request.kind, "put") for request in store.requests)
    if catalog is not None:
        found["catalog"] = len(catalog.requests)
    return found


def properties_of(kind: str, server: SeaweedFSServer, bucket: dict[str, str], folder: Path) -> dict[str, str]:
    if kind == "rest":
        return bucket
    server.client("s3").create_bucket(Bucket="plain")
    files = {key: value for key, value in bucket.items() if key.startswith("s3.")}
    return {**files, "type": "sql", "uri": f"sqlite:///{folder}/catalog.db", "warehouse": "s3://plain/warehouse"}


@pytest.mark.parametrize("kind", ["rest", "sql"])
def test_a_pass_tells_what_it_sent_and_asks_for_each_file_once(
    kind: str, seaweedfs: SeaweedFSServer, table_bucket: dict[str, str], tmp_path: Path
) -> None:
    properties = properties_of(kind, seaweedfs, table_bucket, tmp_path)
    writer = load_catalog("writer", **properties)
    writer.create_namespace("ns")
    rows = pa.table({"id": pa.array(range(10), pa.int64()), "name": ["x"] * 10})
    table = writer.create_table("ns.t", rows.schema, "s3://plain/warehouse/ns/t" if kind == "sql" else None)
    for _ in range(FILES):
        table.append(rows)

    with counting_proxy(seaweedfs.s3_endpoint) as store, counting_proxy(seaweedfs.iceberg_uri) as catalog:
        ways = {"s3.endpoint": store.address, **({"uri": catalog.address} if kind == "rest" else {})}
        ours = connect("writer", {**properties, **ways})
        runtime = Runtime(ours, SqliteStateStore(tmp_path / "state.db"), environment={})
        store.requests.clear()
        catalog.requests.clear()
        # Two processes: what they send comes back with what they did.
        outcome = runtime.maintain(TableName(("ns",), "t"), EAGER, LocalEngine(2), unsafe=True)
        sent = on_the_wire(store, catalog if kind == "rest" else None)
        paths = [(request.kind, request.path.partition("?")[0]) for request in store.requests]
        assert runtime.verify(TableName(("ns",), "t")).ok

    assert outcome.metrics["compact.files_merged"] == FILES
    assert told(outcome.metrics) == sent
    assert sum(sent.values()) <= 3 * FILES + MORE
    written = {path for kind, path in paths if kind == "PUT"}  # proven, and rewritten by a worker
    read = Counter(path for kind, path in paths if kind in ("GET", "HEAD") and path not in written)
    assert max(read.values()) == 1
    assert {kind for kind, _ in paths} <= {"GET", "HEAD", "LIST", "PUT", "DELETE_MANY"}  # no upload in parts


@pytest.mark.parametrize("size", [0, 100, 10 * MIB - 1, 10 * MIB, 25 * MIB])
def test_an_upload_is_counted_as_it_is_sent(
    size: int, seaweedfs: SeaweedFSServer, table_bucket: dict[str, str]
) -> None:
    bucket = f"uploads-{size}"
    seaweedfs.client("s3").create_bucket(Bucket=bucket)
    path = f"s3://{bucket}/file"
    with counting_proxy(seaweedfs.s3_endpoint) as store:
        storage = Storage({**table_bucket, "s3.endpoint": store.address})
        with counting() as count, storage.open_output(path) as stream:
            for start in range(0, size, 3 * MIB):
                stream.write(bytes(min(3 * MIB, size - start)))
        assert count.counts == {RequestKind.PUT: len(store.requests)}
        with counting() as count:
            assert len(storage.read(path)) == size
            with storage.open_input(path, size) as stream:
                assert len(stream.read()) == size
            with storage.open_input(path) as stream:
                assert stream.size() == size
            assert storage.read_end(path, 50).size == size
        assert count.counts[RequestKind.GET] == on_the_wire(store, None)["get"]
