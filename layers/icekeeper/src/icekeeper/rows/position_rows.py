"""Reads the rows of a position delete file, grouped by the data file that they name, and deletion vectors."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
from pyroaring import BitMap64

from icekeeper.errors import MetadataUnreadable
from icekeeper.metadata.puffin import decode_deletion_vector
from icekeeper.rows.file_rows import open_rows, reading
from icekeeper.storage.paths import is_local
from icekeeper.storage.storage import Storage

__all__ = ["PositionRows", "position_rows", "vector_positions"]

# The specification fixes these names ("Position Delete Files"); some writers leave out the field ids.
_COLUMNS = ("file_path", "pos")
# A vector of more bytes may be asked for only where the file has them: memory for them is taken before they are read.
_USUAL_VECTOR = 64 * 1024 * 1024
_LARGEST_OFFSET = 2**62


@dataclass(frozen=True, slots=True)
class PositionRows:
    """The rows of one batch of a position delete file."""

    count: int
    """How many rows the batch has, also those without path or position."""
    by_path: tuple[tuple[str, pa.Array], ...]
    """Data file path → deleted positions."""


def position_rows(
    path: str, file_format: str, storage: Storage, *, verify_checksums: bool = True
) -> Iterator[PositionRows]:
    """Stream the file; a row with a null path or position deletes nothing.

    ``verify_checksums``: as in :class:`.ReadableFile`.

    Raises:
        FileUnreadable: it is missing, damaged, no position delete file, or deletes a row before the first.
        StorageError: the store failed.
    """
    with reading(path, storage), storage.open_input(path) as stream:
        rows = open_rows(stream, file_format, few_reads=not is_local(path), verify_checksums=verify_checksums)
        if any(rows.schema.get_field_index(name) < 0 for name in _COLUMNS):
            raise MetadataUnreadable(f"{path} lacks file_path or pos; it is no position delete file")
        for batch in rows.batches(_COLUMNS):
            table = pa.table({"path": batch.column("file_path").cast(pa.string()), "pos": batch.column("pos")})
            least = pc.min(table["pos"]).as_py()
            if least is not None and least < 0:
                # Bitmaps have no such position, and which row was meant is not known (rule 11).
                raise MetadataUnreadable(f"{path} deletes position {least}, which no row has")
            grouped = table.drop_null().group_by("path", use_threads=False).aggregate([("pos", "list")])
            found = zip(grouped["path"].to_pylist(), grouped["pos_list"], strict=True)
            yield PositionRows(batch.num_rows, tuple((name, positions.values) for name, positions in found))


def vector_positions(path: str, offset: int, size: int, cardinality: int, storage: Storage) -> BitMap64:
    """The positions of a deletion vector that lies in a Puffin file where its manifest entry says.

    Raises:
        FileUnreadable: it does not lie there, or holds another number of positions than its entry says.
        StorageError: the store failed.
    """
    # How large the file is costs a request of its own, and no vector of these sizes needs it.
    is_likely = 0 <= offset <= _LARGEST_OFFSET and 0 <= size <= _USUAL_VECTOR
    with reading(path, storage):
        with storage.open_input(path) as stream:
            if not is_likely and not 0 <= offset <= offset + size <= stream.size():
                raise MetadataUnreadable(f"the deletion vector in {path} does not lie where its manifest says")
            blob = stream.read_at(size, offset)
        return decode_deletion_vector(blob, path, cardinality)
