"""Passes over a table whose store fails during the pass, and checks of the table afterwards."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from itertools import count
from pathlib import Path

import pyarrow as pa
from pyiceberg.catalog import load_catalog

from icekeeper.catalogs.configured import ConfiguredCatalog
from icekeeper.catalogs.load import connect
from icekeeper.demo.seaweedfs import SeaweedFSServer
from icekeeper.engines.local_engine import LocalEngine
from icekeeper.errors import MaintenanceError
from icekeeper.metadata.table_reader import TableReader, reachable_files
from icekeeper.model import TableName
from icekeeper.report.outcome import Status
from icekeeper.runtime import Runtime
from icekeeper.state.sqlite.store import SqliteStateStore
from icekeeper.storage.storage import Storage
from icekeeper.verification.verify import verify_table
from support.maintained_table import EAGER
from support.proxies import Fault, Moment, WireRequest, failing_store

_NAME = TableName.parse("ns.t")
_numbers = count()


@dataclass(frozen=True)
class FailedPass:
    """The results of a pass."""

    hit: WireRequest | None
    """The request with which the store began to fail; ``None`` if it did not fail."""
    messages: tuple[str, ...]
    """A message of each operation that failed or could not delete a file, or of the pass that could not begin."""


class FailedPasses:
    """Passes over a table of four data files and an orphan, which is restored before each pass."""

    def __init__(self, server: SeaweedFSServer, folder: Path) -> None:
        """``folder`` holds catalogs and states."""
        self._server, self._folder = server, folder
        self._bucket = f"failed-passes-{next(_numbers)}"
        self._s3 = server.client("s3")
        self._s3.create_bucket(Bucket=self._bucket)
        known = server.catalog_properties(self._bucket)
        self._properties = {key: value for key, value in known.items() if key.startswith("s3.")}
        self._properties |= {"type": "sql", "warehouse": f"s3://{self._bucket}"}
        self._template = folder / "template.db"
        catalog = load_catalog("lake", **self._properties, uri=f"sqlite:///{self._template}")
        catalog.create_namespace("ns")
        rows = pa.table({"id": range(10)})
        table = catalog.create_table("ns.t", rows.schema)
        for _ in range(4):
            table.append(rows)
        Storage(table.io.properties).write(f"{table.location()}/data/orphan.parquet", b"x")
        self._objects = {key: self._s3.get_object(Bucket=self._bucket, Key=key)["Body"].read() for key in self._keys()}

    def run(self, fault: Fault, moment: Moment) -> FailedPass:
        """Run a pass with a failing store, and the next pass with a working store."""
        number = next(_numbers)
        self._restore()
        shutil.copy(self._template, self._folder / f"{number}.db")
        properties = {**self._properties, "uri": f"sqlite:///{self._folder / f'{number}.db'}"}
        with failing_store(self._server.s3_endpoint, fault, moment) as store:
            messages = self._pass(number, {**properties, "s3.endpoint": store.proxy.address})
        self._check(properties)
        assert self._pass(number, properties) == ()
        left = self._check(properties)
        assert left == set(), f"nobody removes {left}"
        return FailedPass(store.hit, messages)

    def _pass(self, number: int, properties: dict[str, str]) -> tuple[str, ...]:
        state = SqliteStateStore(self._folder / f"{number}.state")
        try:
            runtime = Runtime(connect(ConfiguredCatalog.of("lake", properties)), state, environment={})
            done = runtime.maintain(_NAME, EAGER, LocalEngine(1), unsafe=True)
        except MaintenanceError as error:
            return (str(error),)
        return tuple(
            item.reason or item.summary
            for item in done.operations
            if item.status not in (Status.SUCCEEDED, Status.SKIPPED)
            or any(value for key, value in item.metrics.items() if key.endswith(("files_failed", "bins_failed")))
        )

    def _check(self, properties: dict[str, str]) -> set[str]:
        """Check that every row exists once and every reachable file exists; return the unreachable files."""
        ids = load_catalog("lake", **properties).load_table("ns.t").scan().to_arrow()["id"].to_pylist()
        assert sorted(ids) == sorted([*range(10)] * 4)
        loaded = connect(ConfiguredCatalog.of("lake", properties)).load(_NAME)
        storage = Storage(loaded.io_properties)
        assert not verify_table(loaded, storage).problems
        reachable = reachable_files(TableReader(loaded.metadata, storage.read), loaded.metadata_location)
        return {f"s3://{self._bucket}/{key}" for key in self._keys()} - set(reachable)

    def _keys(self) -> set[str]:
        pages = self._s3.get_paginator("list_objects_v2").paginate(Bucket=self._bucket)
        return {found["Key"] for page in pages for found in page.get("Contents", [])}

    def _restore(self) -> None:
        """Restore the objects that a pass has deleted, and delete those that it has written."""
        keys = self._keys()
        for key in keys - self._objects.keys():
            self._s3.delete_object(Bucket=self._bucket, Key=key)
        for key in self._objects.keys() - keys:
            self._s3.put_object(Bucket=self._bucket, Key=key, Body=self._objects[key])
