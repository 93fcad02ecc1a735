"""Writes position delete files and deletion vectors (specification, "Position Delete Files", "Deletion Vectors")."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import pyarrow as pa
import pyarrow.parquet as pq
from pyroaring import BitMap64

from icekeeper.metadata.delete_scope import DELETE_FILE_PATH_ID, DELETE_POSITION_ID
from icekeeper.metadata.puffin import encode_puffin
from icekeeper.model import DataFile, FileContent, PartitionValue
from icekeeper.rows.arrow_schema import FIELD_ID_KEY
from icekeeper.rows.file_rows import BATCH_ROWS
from icekeeper.storage.multipart import bounded_output
from icekeeper.storage.storage import Storage

# The specification fixes names, ids and nullability ("Position Delete Files").
_SCHEMA = pa.schema(
    [
        pa.field("file_path", pa.string(), nullable=False, metadata={FIELD_ID_KEY: str(DELETE_FILE_PATH_ID)}),
        pa.field("pos", pa.int64(), nullable=False, metadata={FIELD_ID_KEY: str(DELETE_POSITION_ID)}),
    ]
)
_CREATED_BY = {"created-by": "icekeeper"}


def write_position_deletes(
    path: str, by_path: Mapping[str, BitMap64], partition: tuple[PartitionValue, ...], storage: Storage
) -> DataFile:
    """Write a Parquet file with the deleted positions of each data file, ordered by path and position.

    Raises:
        StorageError: the file cannot be written.
    """
    paths = sorted(by_path)
    footers: list[pq.FileMetaData] = []
    with storage.translated(path), bounded_output(storage, path) as sink:
        with pq.ParquetWriter(
            sink, _SCHEMA, compression="zstd", store_schema=False, write_page_checksum=True, metadata_collector=footers
        ) as file:
            for batch in _batches(paths, by_path):
                file.write_batch(batch)
        size = sink.tell()
    counted = {DELETE_FILE_PATH_ID: footers[0].num_rows, DELETE_POSITION_ID: footers[0].num_rows}
    return DataFile(
        content=FileContent.POSITION_DELETES,
        file_path=path,
        file_format="PARQUET",
        partition=partition,
        record_count=footers[0].num_rows,
        file_size_in_bytes=size,
        value_counts=counted,
        null_value_counts=dict.fromkeys(counted, 0),
        # Not truncated: equal bounds show older readers that the file names a single data file.
        lower_bounds={DELETE_FILE_PATH_ID: paths[0].encode()},
        upper_bounds={DELETE_FILE_PATH_ID: paths[-1].encode()},
        referenced_data_file=paths[0] if len(paths) == 1 else None,
    )


def _batches(paths: list[str], by_path: Mapping[str, BitMap64]) -> Iterator[pa.RecordBatch]:
    """Row groups of at least ``BATCH_ROWS`` rows, except the last row group."""
    held: list[pa.RecordBatch] = []
    rows = 0
    for path in paths:
        positions = pa.array(by_path[path].to_array(), pa.int64())
        for start in range(0, len(positions), BATCH_ROWS):
            part = positions.slice(start, BATCH_ROWS)
            held.append(pa.RecordBatch.from_arrays([pa.repeat(pa.scalar(path), len(part)), part], schema=_SCHEMA))
            rows += len(part)
            if rows >= BATCH_ROWS:
                yield pa.concat_batches(held)
                held, rows = [], 0
    if held:
        yield pa.concat_batches(held)


def write_vectors(
    path: str, by_path: Mapping[str, BitMap64], partitions: Mapping[str, tuple[PartitionValue, ...]], storage: Storage
) -> tuple[DataFile, ...]:
    """Write the Puffin file of :func:`encode_vectors`, and return the entries.

    Raises:
        StorageError: the file cannot be written.
    """
    data, files = encode_vectors(path, by_path, partitions)
    storage.write(path, data)
    return files


def encode_vectors(
    path: str, by_path: Mapping[str, BitMap64], partitions: Mapping[str, tuple[PartitionValue, ...]]
) -> tuple[bytes, tuple[DataFile, ...]]:
    """A Puffin file with a deletion vector per data file, and an entry per vector, in the order of the paths (pure).

    The keys of both mappings are paths of data files.
    """
    vectors = [(named, by_path[named]) for named in sorted(by_path)]
    data, blobs = encode_puffin(vectors, _CREATED_BY)
    return data, tuple(
        DataFile(
            content=FileContent.POSITION_DELETES,
            file_path=path,
            file_format="PUFFIN",
            partition=partitions[named],
            record_count=len(positions),
            file_size_in_bytes=len(data),
            referenced_data_file=named,
            content_offset=blob.offset,
            content_size_in_bytes=blob.length,
        )
        for (named, positions), blob in zip(vectors, blobs, strict=True)
    )
