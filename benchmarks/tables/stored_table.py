"""Tables in a real table bucket (SeaweedFS) behind a proxy that delays every request and counts what passes."""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import pyarrow.parquet as pq
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.schema import Schema
from pyiceberg.typedef import Record

from benchmarks.delay_proxy import DelayProxy, delay_proxy
from benchmarks.tables.event_tables import EVENTS
from benchmarks.tables.kept_table import KeptTable
from benchmarks.tables.rows import data_file
from icekeeper.demo.seaweedfs import GRPC_OFFSET, HOST, SeaweedFSServer, running_seaweedfs
from icekeeper.model import DataFile as MeasuredFile

BUCKET = "lake"


@dataclass(frozen=True, slots=True)
class Store:
    """A running table bucket.

    ``properties`` lead to it directly, ``delayed`` through the proxy where there is one.
    """

    server: SeaweedFSServer
    properties: Mapping[str, str]
    proxy: DelayProxy | None
    catalog: Catalog
    _numbers: Iterator[int] = field(default_factory=itertools.count)

    @property
    def delayed(self) -> dict[str, str]:
        return dict(self.properties) if self.proxy is None else {**self.properties, "s3.endpoint": self.proxy.url}

    @property
    def worker(self) -> dict[str, str]:
        """Where SeaweedFS's own worker finds the tables."""
        master, filer = self.server.port("master"), self.server.port("filer") + GRPC_OFFSET
        return {"bucket": BUCKET, "master": f"{HOST}:{master}", "filer": f"{HOST}:{filer}"}

    def new_table(self, source: KeptTable) -> str:
        """A table of its own with a copy of the data files of a table of events; its name."""
        name = f"ns.t{next(self._numbers)}"
        table = self.catalog.create_table(
            name, Schema.model_validate(EVENTS), properties={"write.parquet.compression-codec": "zstd"}
        )
        made = []
        for path in source.data_files:
            address = f"{table.location()}/data/{path.name}"
            with table.io.new_output(address).create(overwrite=True) as sink:
                sink.write(path.read_bytes())
            made.append(_entry(_measured(path), address))
        with table.transaction() as transaction, transaction.update_snapshot().fast_append() as append:
            for entry in made:
                append.append_data_file(entry)
        return name


@cache
def _measured(path: Path) -> MeasuredFile:
    """What an entry says of the file; every run has a table of the same files."""
    return data_file(path, EVENTS, pq.read_table(path, partitioning=None))


def _entry(ours: MeasuredFile, address: str) -> DataFile:
    return DataFile.from_args(
        content=DataFileContent.DATA,
        file_path=address,
        file_format=FileFormat.PARQUET,
        partition=Record(),
        record_count=ours.record_count,
        file_size_in_bytes=ours.file_size_in_bytes,
        column_sizes=dict(ours.column_sizes or {}),
        value_counts=dict(ours.value_counts or {}),
        null_value_counts=dict(ours.null_value_counts or {}),
        nan_value_counts=dict(ours.nan_value_counts or {}),
        lower_bounds=dict(ours.lower_bounds or {}),
        upper_bounds=dict(ours.upper_bounds or {}),
        split_offsets=list(ours.split_offsets or ()),
        spec_id=0,
    )


@contextmanager
def running_store(delay_ms: float, room_bytes: int) -> Iterator[Store]:
    """A table bucket with a namespace, and the proxy before it where there is a delay; gone at the end."""
    with (
        tempfile.TemporaryDirectory(prefix="icekeeper-bench-") as folder,
        running_seaweedfs(Path(folder), room_bytes=room_bytes) as server,
        delay_proxy(server.s3_endpoint, delay_ms / 1000) if delay_ms else nullcontext() as proxy,
    ):
        server.create_table_bucket(BUCKET)
        properties = server.catalog_properties(BUCKET)
        catalog = load_catalog("store", **properties)
        catalog.create_namespace("ns")
        yield Store(server, properties, proxy, catalog)
