"""Writes one Parquet data file as the table asks, row group by row group, and describes it for a manifest.

Source: Iceberg table properties ``write.parquet.*``; specification, "Parquet".
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from icekeeper.errors import PolicyError
from icekeeper.model import DataFile, FileContent
from icekeeper.operations.compaction.arrow_schema import arrow_schema, leaf_columns
from icekeeper.operations.compaction.metrics import NanCounter, file_metrics, metrics_modes
from icekeeper.operations.compaction.task import RewriteTask
from icekeeper.storage import Storage

__all__ = ["write_data_file"]

# Iceberg's TableProperties: PARQUET_*_DEFAULT
_ROW_GROUP_BYTES = 128 * 1024 * 1024
_PAGE_BYTES = 1024 * 1024
_PAGE_ROWS = 20_000
_DICTIONARY_BYTES = 2 * 1024 * 1024
_CODEC = "zstd"
_CODECS = {"zstd": "zstd", "gzip": "gzip", "snappy": "snappy", "lz4": "lz4", "brotli": "brotli", "uncompressed": "none"}
# Arrow needs several times the size of an encoded row group; this bounds a worker's memory whatever a table asks.
_MAX_ROW_GROUP_ARROW_BYTES = 256 * 1024 * 1024


def write_data_file(
    path: str,
    batches: Iterable[pa.RecordBatch],
    task: RewriteTask,
    table_schema: Mapping[str, Any],
    storage: Storage,
    on_row_group: Callable[[int], None] | None = None,
) -> DataFile | None:
    """Write every batch to ``path``; ``None``, and no file, when there are no rows.

    ``on_row_group`` is told the file's bytes so far whenever all batches taken until then are written.

    Raises:
        StorageError: the store refused the file.
        PolicyError: a ``write.parquet.*`` property is malformed.
    """
    output = _Output(path, task.table_properties, arrow_schema(table_schema), storage)
    leaves = leaf_columns(table_schema)
    nans = NanCounter(leaves)
    nans.prepare(output.schema)
    limit = _row_group_arrow_bytes(task.table_properties)
    pending: list[pa.RecordBatch] = []
    pending_bytes = 0
    try:
        for batch in batches:
            if not batch.num_rows:
                continue
            nans.add(batch)
            pending.append(batch)
            pending_bytes += batch.nbytes
            if pending_bytes >= limit:
                output.write(pending)
                pending, pending_bytes = [], 0
                if on_row_group is not None:
                    on_row_group(output.size)
        if pending:
            output.write(pending)
    finally:
        output.close()
    if output.footer is None:
        return None
    metrics = file_metrics(output.footer, leaves, nans.counts, metrics_modes(leaves, task.table_properties))
    return DataFile(
        content=FileContent.DATA,
        file_path=path,
        file_format="PARQUET",
        partition=task.partition,
        record_count=output.footer.num_rows,
        file_size_in_bytes=output.size,
        column_sizes=metrics.column_sizes,
        value_counts=metrics.value_counts,
        null_value_counts=metrics.null_value_counts,
        nan_value_counts=metrics.nan_value_counts,
        lower_bounds=metrics.lower_bounds,
        upper_bounds=metrics.upper_bounds,
        split_offsets=metrics.split_offsets,
    )


class _Output:
    """The file being written; it comes into being with the first row group."""

    def __init__(self, path: str, properties: Mapping[str, str], schema: pa.Schema, storage: Storage) -> None:
        self.schema = schema
        self.size = 0
        self.footer: pq.FileMetaData | None = None
        self._path = path
        self._properties = properties
        self._storage = storage
        self._footers: list[pq.FileMetaData] = []
        self._sink: Any = None
        self._writer: pq.ParquetWriter | None = None

    def write(self, batches: list[pa.RecordBatch]) -> None:
        """One row group."""
        table = pa.Table.from_batches(batches, self.schema)
        with self._storage.translated(self._path):
            if self._writer is None:
                options = _writer_options(self._properties)
                self._sink = self._storage.open_output(self._path)
                self._writer = pq.ParquetWriter(self._sink, self.schema, metadata_collector=self._footers, **options)
            self._writer.write_table(table, row_group_size=table.num_rows)
            self.size = self._sink.tell()

    def close(self) -> None:
        with self._storage.translated(self._path):
            try:
                if self._writer is not None:
                    self._writer.close()
                    self.size = self._sink.tell()
                    self.footer = self._footers[0]
            finally:
                if self._sink is not None:
                    self._sink.close()


def _row_group_arrow_bytes(properties: Mapping[str, str]) -> int:
    return min(_int(properties, "write.parquet.row-group-size-bytes", _ROW_GROUP_BYTES), _MAX_ROW_GROUP_ARROW_BYTES)


def _writer_options(properties: Mapping[str, str]) -> dict[str, Any]:
    codec = properties.get("write.parquet.compression-codec") or _CODEC
    if codec.lower() not in _CODECS:
        raise PolicyError(
            f"table property write.parquet.compression-codec is '{codec}'; allowed: {', '.join(sorted(_CODECS))}"
        )
    arrow_codec = _CODECS[codec.lower()]
    level = properties.get("write.parquet.compression-level")
    has_levels = arrow_codec in ("zstd", "gzip", "brotli")
    return {
        "compression": arrow_codec,
        "compression_level": int(level) if level and has_levels else None,
        "data_page_size": _int(properties, "write.parquet.page-size-bytes", _PAGE_BYTES),
        "max_rows_per_page": _int(properties, "write.parquet.page-row-limit", _PAGE_ROWS),
        "dictionary_pagesize_limit": _int(properties, "write.parquet.dict-size-bytes", _DICTIONARY_BYTES),
        "write_page_index": True,
        "store_decimal_as_integer": True,
        "store_schema": False,
    }


def _int(properties: Mapping[str, str], key: str, default: int) -> int:
    text = properties.get(key)
    if text is None:
        return default
    if not text.isdecimal() or int(text) < 1:
        raise PolicyError(f"table property {key} is '{text}', which is not a positive integer")
    return int(text)
