"""Passes, copies and reads send to a store exactly the requests that they need."""

from __future__ import annotations

import os
import threading
import uuid
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.catalog import load_catalog

from icekeeper.catalogs.configured import ConfiguredCatalog
from icekeeper.catalogs.load import connect, open_catalog
from icekeeper.demo.seaweedfs import SeaweedFSServer
from icekeeper.engines.local_engine import LocalEngine
from icekeeper.machine.metering import RequestKind, counting
from icekeeper.maintenance import run_pass
from icekeeper.maintenance.pass_steps import run_operation
from icekeeper.model import DataFile, TableName
from icekeeper.report.outcome import PassStatus
from icekeeper.rows import file_rows
from icekeeper.rows import read as opened_inputs
from icekeeper.rows.read import Tally, read_rows
from icekeeper.rows.read_task import InputFile
from icekeeper.runtime import Runtime
from icekeeper.state.sqlite.store import SqliteStateStore
from icekeeper.storage.multipart import bounded_output
from icekeeper.storage.storage import Storage
from local_stack.rights.evaluate import decide
from local_stack.rights.rest_needs import rest_needs
from local_stack.rights.roles import roles_of
from local_stack.template import ACCOUNT, REGION, TEMPLATE, Template
from support.copied import judged, large_file, merged_by_the_store, stored_entry
from support.maintained_table import EAGER
from support.proxies import CountingProxy, counting_proxy
from support.rewrites import rows, struct, task

# A pass reports exactly the requests that it sends, and sends no more than it needs
# (platform: pyarrow-s3-requests).

FILES = 6
MIB = 1 << 20
# Requests that a pass may send beyond one for each data file, manifest and manifest list.
MORE = 40


def reported(metrics: dict[str, Any]) -> Counter[str]:
    """Count the requests of each kind in the metrics of a pass."""
    found: Counter[str] = Counter()
    for key, value in metrics.items():
        name = key.partition(".")[2]
        if name.endswith("_requests"):
            found[name.removesuffix("_requests")] += value
    return found


def on_the_wire(store: CountingProxy, catalog: CountingProxy | None) -> Counter[str]:
    """Count the sent requests by kind; PUT, POST and LIST cost the same."""
    kinds = {"GET": "get", "HEAD": "get", "DELETE": "delete", "DELETE_MANY": "delete"}  # a batch is a POST
    found = Counter(kinds.get(request.kind, "put") for request in store.requests)
    if catalog is not None:
        found["catalog"] = len(catalog.requests)
    return found


def test_a_pass_reports_its_requests_and_reads_each_file_once(
    seaweedfs: SeaweedFSServer, table_bucket: dict[str, str], tmp_path: Path
) -> None:
    writer = load_catalog("writer", **table_bucket)
    writer.create_namespace("ns")
    rows = pa.table({"id": pa.array(range(10), pa.int64()), "name": ["x"] * 10})
    table = writer.create_table("ns.t", rows.schema)
    for _ in range(FILES):
        table.append(rows)

    with counting_proxy(seaweedfs.s3_endpoint) as store, counting_proxy(seaweedfs.iceberg_uri) as catalog:
        ways = {"s3.endpoint": store.address, "uri": catalog.address}
        ours = connect(ConfiguredCatalog.of("writer", {**table_bucket, **ways}))
        runtime = Runtime(ours, SqliteStateStore(tmp_path / "state.db"), environment={})
        store.requests.clear()
        catalog.requests.clear()
        # Two worker processes return their request counts with their results.
        outcome = runtime.maintain(TableName(("ns",), "t"), EAGER, LocalEngine(2), unsafe=True)
        sent = on_the_wire(store, catalog)
        paths = [(request.kind, request.path.partition("?")[0]) for request in store.requests]
        store.requests.clear()
        verified = runtime.verify(TableName(("ns",), "t"))

    # Each manifest list and manifest once; whether files can be listed, and the listing.
    assert verified.ok
    looked = Counter(request.kind for request in store.requests)
    assert looked == {"GET": verified.checked["snapshots"] + verified.checked["manifests"], "LIST": 2}
    assert outcome.metrics["compact.files_merged"] == FILES
    assert reported(outcome.metrics) == sent
    assert sum(sent.values()) <= 3 * FILES + MORE
    written = {path for kind, path in paths if kind == "PUT"}  # the proof reads them back
    read = Counter(path for kind, path in paths if kind in ("GET", "HEAD") and path not in written)
    assert max(read.values()) == 1
    assert {kind for kind, _ in paths} <= {"GET", "HEAD", "LIST", "PUT", "DELETE_MANY"}  # no upload in parts


def test_uploads_count_the_requests_they_send(seaweedfs: SeaweedFSServer, table_bucket: dict[str, str]) -> None:
    seaweedfs.client("s3").create_bucket(Bucket="uploads")
    for size in (0, 100, 25 * MIB, 40 * MIB):  # the last in parts
        path = f"s3://uploads/{size}"
        with counting_proxy(seaweedfs.s3_endpoint) as store:
            storage = Storage({**table_bucket, "s3.endpoint": store.address})
            with counting() as count, bounded_output(storage, path) as stream:
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


def test_pyarrow_uploads_a_small_object_with_one_request(
    seaweedfs: SeaweedFSServer, table_bucket: dict[str, str]
) -> None:
    """It uploads where boto3 finds no credentials."""
    seaweedfs.client("s3").create_bucket(Bucket="small-uploads")
    with counting_proxy(seaweedfs.s3_endpoint) as store:
        storage = Storage({**table_bucket, "s3.endpoint": store.address})
        with counting() as count, storage.open_output("s3://small-uploads/a") as stream:
            stream.write(bytes(10 * MIB - 1))
    assert [request.kind for request in store.requests] == ["PUT"]
    assert count.counts == {RequestKind.PUT: 1}


# Files of an object store are read in few requests; the next small files are fetched while a file is decoded.

COLUMNS = 10
SCHEMA = struct(*((number, f"c{number}", "long") for number in range(1, COLUMNS + 1)))


class Far(Storage):
    """Serves a local folder as an object store and records the reads of each file."""

    def __init__(self, folder: Path) -> None:
        super().__init__({})
        self._folder = folder
        self.reads: list[str] = []
        self._counting = threading.Lock()
        self.meeting: threading.Barrier | None = None

    def open_input(self, path: str, size: int | None = None) -> pa.NativeFile:
        with self.translated(path):
            return pa.PythonFile(_Counted(self, self._folder / path.removeprefix("s3://bucket/")), mode="r")

    def read_once(self, name: str) -> None:
        with self._counting:
            self.reads.append(name)
        if self.meeting is not None:
            self.meeting.wait(timeout=20)


class _Counted:
    def __init__(self, storage: Far, path: Path) -> None:
        self._storage = storage
        self._name = path.name
        self._file = pa.OSFile(str(path))

    def __getattr__(self, name: str) -> Any:
        if name not in ("closed", "close", "size", "seek", "tell", "readable", "seekable", "writable"):
            raise AttributeError(name)
        return getattr(self._file, name)

    def read(self, size: int = -1) -> pa.Buffer:
        self._storage.read_once(self._name)
        return self._file.read_buffer(None if size < 0 else size)


def made(folder: Path, number: int, count: int = 100, group: int = 1000) -> InputFile:
    """Write a file and return it as a task's input; ids are unique among all files."""
    ids = list(range(number * 1000, number * 1000 + count))
    path = folder / f"in-{number}.parquet"
    pq.write_table(rows(SCHEMA, {f"c{column}": ids for column in range(1, COLUMNS + 1)}), path, row_group_size=group)
    return InputFile(f"s3://bucket/{path.name}", count, path.stat().st_size)


def ids_read(inputs: list[InputFile], storage: Far) -> list[int]:
    work = task(SCHEMA, inputs, Path("unused"))
    return [i for batch in read_rows(work, storage, Tally()) for i in batch.column(0).to_pylist()]


def test_small_files_are_read_at_the_same_time(tmp_path: Path) -> None:
    """Each file takes one read, which waits until three run; rows keep the order of the files."""
    inputs = [made(tmp_path, number, group=10) for number in range(3)]
    storage = Far(tmp_path)
    storage.meeting = threading.Barrier(3)
    assert ids_read(inputs, storage) == [number * 1000 + i for number in range(3) for i in range(100)]
    assert len(storage.reads) == 3


def test_row_groups_of_a_large_file_share_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Eleven row groups of ten rows make three batches of at most five; the footer takes two reads."""
    monkeypatch.setattr(opened_inputs, "_SMALL_BYTES", 1)
    monkeypatch.setattr(file_rows, "BATCH_ROWS", 50)
    source = made(tmp_path, 0, count=110, group=10)
    storage = Far(tmp_path)
    assert ids_read([source], storage) == list(range(110))
    assert len(storage.reads) <= 2 + 3


def test_files_are_fetched_ahead_only_up_to_a_number_of_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While a slow reader reads one file, not all other files are fetched."""
    inputs = [made(tmp_path, number) for number in range(10)]
    monkeypatch.setattr(opened_inputs, "_OPENED_AHEAD_BYTES", 2 * inputs[0].file_size_in_bytes)
    storage = Far(tmp_path)
    reading = read_rows(task(SCHEMA, inputs, tmp_path), storage, Tally())
    next(reading)
    assert len(storage.reads) <= 3
    assert sum(batch.num_rows for batch in reading) == 900


def test_a_file_larger_than_its_entry_states_is_not_held_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = made(tmp_path, 0)
    monkeypatch.setattr(opened_inputs, "_SMALL_BYTES", source.file_size_in_bytes - 1)
    storage = Far(tmp_path)
    assert ids_read([replace(source, file_size_in_bytes=1)], storage) == list(range(100))
    assert len(storage.reads) > 1


# Every request that a copy of row groups sends to a store, from the footers to the proof
# (rule: cache-only-immutable-metadata).


def kinds(store: CountingProxy, stage: str) -> Counter[str]:
    """Count the requests of a stage by kind and file."""
    return Counter(
        f"{item.kind} {item.path.partition('?')[0].rpartition('/')[2]}"
        for item in store.requests
        if item.stage == stage
    )


def test_a_copy_of_row_groups_sends_only_the_requests_that_it_needs(seaweedfs: SeaweedFSServer) -> None:
    seaweedfs.create_table_bucket("copies-counted")
    properties = seaweedfs.catalog_properties("copies-counted")
    folder = f"{properties['warehouse']}ns/t{uuid.uuid4().hex}/data"
    direct = Storage(properties)
    files = [large_file(0), large_file(1_000_000, seed=1)]
    entries = [stored_entry(direct, f"{folder}/{number}", data) for number, data in enumerate(files)]
    with counting_proxy(seaweedfs.s3_endpoint) as store:
        storage = Storage({**properties, "s3.endpoint": store.address})
        store.stage = "footers"
        inputs = judged(storage, entries)
        store.stage = "by the store"
        assert isinstance(merged_by_the_store(storage, inputs, f"{folder}/stored"), DataFile)
        storage.no_range_copies.add(folder.split("/")[2])
        store.stage = "through us"
        assert isinstance(merged_by_the_store(storage, inputs, f"{folder}/streamed"), DataFile)
    assert kinds(store, "footers") == {"GET 0": 1, "GET 1": 1}
    assert {item.range for item in store.requests if item.stage == "footers"} == {"bytes=-65536"}
    # The footer reads include page indexes.  The proof reads size, footer and magic of the new file, and for each input
    # some bytes of both files and one column chunk that it decodes.
    assert kinds(store, "by the store") == {
        "CREATE stored": 1,
        "PART stored": 2 + 1,
        "COMPLETE stored": 1,
        "HEAD stored": 1,
        "GET stored": 1 + 1 + 2 * 2,
        "GET 0": 1,
        "GET 1": 1,
    }
    # Both inputs; for the proof: size, footer, all 14 MB in two ranges, and a column chunk of each input.
    assert kinds(store, "through us") == {
        "GET 0": 1,
        "GET 1": 1,
        "PUT streamed": 1,
        "HEAD streamed": 1,
        "GET streamed": 1 + 2 + 2,
    }


# The exact requests that each operation of a pass sends to a store
# (rule: cache-only-immutable-metadata, bounded-worker-memory).


def kind_of(path: str) -> str:
    name = path.partition("?")[0].rpartition("/")[2]
    if name.endswith(".parquet"):
        return "data"
    if name.startswith("snap-"):
        return "manifest list"
    return "metadata" if name.endswith(".json") else "manifest" if name.endswith(".avro") else "other"


def sent(store: CountingProxy, stage: str) -> dict[str, int]:
    found = Counter(f"{item.kind} {kind_of(item.path)}" for item in store.requests if item.stage == stage)
    return dict(sorted(found.items()))


def test_each_operation_sends_only_the_requests_that_it_needs(
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
        ours = connect(ConfiguredCatalog.of("writer", {**properties, "s3.endpoint": store.address}))
        runtime = Runtime(ours, SqliteStateStore(tmp_path / "state.db"), environment={})
        outcome = runtime.maintain(TableName(("ns",), "t"), EAGER, LocalEngine(1), unsafe=True)

    assert outcome.metrics["compact.files_merged"] == FILES
    assert reported(outcome.metrics) == on_the_wire(store, None)
    found = {stage: sent(store, stage) for stage in dict.fromkeys(item.stage for item in store.requests)}
    assert found == {
        # The start of the pass: the head, and the paths of all new files.
        "": {"GET manifest": FILES, "GET manifest list": FILES, "GET metadata": 1},
        # Each input in one read, and the end of the output (rule: prove-before-commit).
        "compact": {"GET data": FILES + 1, "PUT data": 1, "PUT manifest": 2, "PUT manifest list": 1, "PUT metadata": 1},
        # The first operation that needs compaction's commit reads it back (rule: cache-only-immutable-metadata).
        "rewrite_position_deletes": {"GET manifest list": 1, "GET metadata": 1},
        # One request is for an object that never existed (platform: lakefs-shows-itself).
        "expire_snapshots": {
            "DELETE_MANY other": 2,
            "GET manifest": 3,
            "GET metadata": 1,
            "LIST other": 4,
            "PUT metadata": 1,
        },
        "remove_orphans": {"LIST other": 1},
        "rewrite_manifests": {"PUT manifest": 1, "PUT manifest list": 1, "PUT metadata": 1},
    }


# A table bucket as an Iceberg REST catalog: the role permits every request that a pass sends
# (rule: least-privilege-roles).

BUCKET = f"arn:aws:s3tables:{REGION}:{ACCOUNT}:bucket/lake"
SETTINGS = {"operations": "compact", "min_input_files": "2"}


def test_the_role_permits_every_request_of_a_pass_over_a_rest_catalog(
    table_bucket: dict[str, str], tmp_path: Path
) -> None:
    rows = pa.table({"id": pa.array(range(5), pa.int64())})
    writer = load_catalog("lake", **table_bucket)
    writer.create_namespace("ns")
    table = writer.create_table("ns.t", rows.schema)
    for _ in range(2):
        table.append(rows)
    with counting_proxy(table_bucket["uri"]) as proxy:
        catalog = open_catalog("lake", {**table_bucket, "uri": proxy.address})
        (name,) = catalog.list_tables()
        runtime = Runtime(catalog, SqliteStateStore(tmp_path / "state.db"), environment={})
        outcome = runtime.maintain(TableName(("ns",), "t"), SETTINGS, LocalEngine(1))
    assert (str(name), outcome.status) == ("ns.t", PassStatus.SUCCEEDED)
    # The proxy takes a list of namespaces with a parent for a list of objects.
    requests = [("GET" if item.kind == "LIST" else item.kind, item.path) for item in proxy.requests]
    needs = {str(need): need for method, path in requests for need in rest_needs(method, path, BUCKET)}
    assert {need.action.removeprefix("s3tables:") for need in needs.values()} == {
        *("GetTableBucket", "ListNamespaces", "ListTables", "GetTableMetadataLocation", "GetTableData"),
        *("UpdateTableMetadataLocation", "PutTableData"),
    }
    template = Template(TEMPLATE, "stack", {"TableBucketArns": BUCKET})
    (role,) = (role for role in roles_of(template).values() if role.name == "CommitFunctionRole")
    assert [text for text, need in needs.items() if not decide(role, need).is_allowed] == []
