"""Tables in a real table bucket (SeaweedFS) behind a proxy that delays every request and counts what passes."""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
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
from icekeeper.demo.seaweedfs import running_seaweedfs

__all__ = ["Store", "running_store"]

_BUCKET = "lake"


@dataclass(frozen=True, slots=True)
class Store:
    """A running table bucket; ``properties`` lead past the proxy, ``delayed`` through it."""

    properties: Mapping[str, str]
    proxy: DelayProxy
    catalog: Catalog
    _numbers: Iterator[int] = field(default_factory=itertools.count)

    @property
    def delayed(self) -> dict[str, str]:
        return {**self.properties, "s3.endpoint": self.proxy.url}

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
            made.append(_entry(path, address))
        with table.transaction() as transaction, transaction.update_snapshot().fast_append() as append:
            for entry in made:
                append.append_data_file(entry)
        return name


def _entry(path: Path, address: str) -> DataFile:
    ours = data_file(path, EVENTS, pq.read_table(path, partitioning=None))
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
    """A server with a table bucket and a namespace, and the proxy before it; gone at the end."""
    with (
        tempfile.TemporaryDirectory(prefix="icekeeper-bench-") as folder,
        running_seaweedfs(Path(folder), room_bytes=room_bytes) as server,
        delay_proxy(server.s3_endpoint, delay_ms / 1000) as proxy,
    ):
        server.create_table_bucket(_BUCKET)
        properties = server.catalog_properties(_BUCKET)
        catalog = load_catalog("store", **properties)
        catalog.create_namespace("ns")
        yield Store(properties, proxy, catalog)
