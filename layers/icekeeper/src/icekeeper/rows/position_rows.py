"""Reads the rows of a position delete file, grouped by the data file that they name."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from icekeeper.errors import MetadataUnreadable
from icekeeper.rows.file_rows import open_rows
from icekeeper.storage.paths import is_local
from icekeeper.storage.storage import Storage

__all__ = ["PositionRows", "position_rows"]

# The specification fixes these names ("Position Delete Files"); some writers leave out the field ids.
_COLUMNS = ("file_path", "pos")


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
        MetadataUnreadable: it is no position delete file, or deletes a row before the first.
        StorageError: it cannot be read.
    """
    with storage.translated(path), storage.open_input(path) as stream:
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
