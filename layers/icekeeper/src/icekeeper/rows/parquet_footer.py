"""Reads the footer of a Parquet file with one request, unless it is unusually large; a size is not asked for.

Source: apache/parquet-format, "File format": a file ends with the footer, its length in four bytes and the magic bytes.
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.parquet as pq

from icekeeper.storage.storage import Storage

__all__ = ["read_parquet_footer"]

_MAGIC = b"PAR1"
_FRAME = 8
_FIRST_READ = 64 * 1024


def read_parquet_footer(path: str, storage: Storage) -> pq.FileMetaData:
    """The footer of a file, as Arrow understands it.

    Raises:
        StorageError: the file does not exist, or the store failed.
        pa.ArrowException: it is no Parquet file, or damaged.
    """
    end, size, _ = storage.read_end(path, _FIRST_READ)
    wanted = int.from_bytes(end[-_FRAME:-4], "little") + _FRAME
    if len(end) < wanted <= size:
        end = storage.read_end(path, wanted).data
    # Arrow finds the footer from the end, and wants the beginning of a file before it.
    return pq.read_metadata(pa.BufferReader(_MAGIC + end[-wanted:]))
