"""Opens Parquet files so that what is read of a row group is in memory by pieces, however large it is.

Arrow reads a column chunk whole unless it is told how much of it to buffer (platform 75).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from icekeeper.rows.arrow_threads import arrow_threads

__all__ = ["ParquetRows", "open_parquet"]

_SMALL_BYTES = 4 * 1024 * 1024
"""A file of so many bytes is read as Arrow does, without a look at its row groups."""
_THREADS_PAY_BYTES = 512 * 1024
"""Below, it takes longer to hand columns to threads and to wait for them than to decode them here."""
_BUFFER_BYTES = 256 * 1024
"""Of a column chunk on this machine."""
_AT_ONCE_BYTES = 32 * 1024 * 1024
"""What is read with few requests may be so large: all of it is in memory before any of it is decoded."""
_BATCH_BYTES = 16 * 1024 * 1024
"""Of the encoded values of a batch, before compression: rows that are wide come fewer at a time."""


@dataclass(frozen=True, slots=True)
class ParquetRows:
    """An open file; ``portions`` are the row groups that are read together, ``None``: all of them.

    ``threads``: threads of Arrow's may decode it.
    """

    file: pq.ParquetFile
    portions: tuple[list[int] | None, ...]
    batch_rows: int
    threads: bool


def open_parquet(
    stream: pa.NativeFile, few_reads: bool, row_group: int | None, batch_rows: int, verify_checksums: bool = True
) -> ParquetRows:
    """A file whose rows are read in batches of ``batch_rows``, or of fewer if they are wide; of one row group, or all.

    ``few_reads``: each read of the stream takes long, so that the columns of a row group are better read in one.
    ``verify_checksums``: reading a page whose checksum is not that of its bytes raises an error (rule 247), which Arrow
    does only when it is asked to (platform 118).

    Raises:
        pa.ArrowException, OSError: the file is damaged.
    """
    options: dict[str, Any] = {
        "coerce_int96_timestamp_unit": "us",
        "page_checksum_verification": verify_checksums,
    }
    size, share = int(stream.size()), 1.0
    if size > _SMALL_BYTES:
        footer = pq.read_metadata(stream)
        encoded = max(1, sum(_encoded_bytes(footer)))
        # About how many bytes of the file one encoded byte takes; a footer sums up the latter only.
        share = size / encoded
        options |= {"metadata": footer, "buffer_size": _buffer_bytes(footer, share, few_reads)}
        batch_rows = max(1, min(batch_rows, _BATCH_BYTES * footer.num_rows // encoded))
    file = pq.ParquetFile(stream, pre_buffer=few_reads and not options.get("buffer_size"), **options)
    threads = size >= _THREADS_PAY_BYTES and arrow_threads()
    if row_group is not None:
        return ParquetRows(file, ([row_group],), batch_rows, threads)
    portions = tuple(_portions(file.metadata, share, batch_rows)) if few_reads else (None,)
    return ParquetRows(file, portions, batch_rows, threads)


def _encoded_bytes(footer: pq.FileMetaData) -> Iterator[int]:
    return (footer.row_group(number).total_byte_size for number in range(footer.num_row_groups))


def _buffer_bytes(footer: pq.FileMetaData, share: float, few_reads: bool) -> int:
    """How much of a column chunk is buffered; 0: chunks are read whole, for they are small enough."""
    largest = max(_encoded_bytes(footer), default=0) * share
    wanted = _BUFFER_BYTES
    if few_reads:
        if largest <= _AT_ONCE_BYTES:
            return 0
        wanted = max(_BUFFER_BYTES, _AT_ONCE_BYTES // footer.num_columns)
    return wanted if wanted * footer.num_columns < largest else 0


def _portions(footer: pq.FileMetaData, share: float, batch_rows: int) -> Iterator[list[int]]:
    """Row groups that together have the rows of a batch, or as many bytes as may be fetched at once."""
    portion: list[int] = []
    rows, size = 0, 0.0
    for number, encoded in enumerate(_encoded_bytes(footer)):
        portion.append(number)
        rows += footer.row_group(number).num_rows
        size += encoded * share
        if rows >= batch_rows or size >= _AT_ONCE_BYTES or number == footer.num_row_groups - 1:
            yield portion
            portion, rows, size = [], 0, 0.0
