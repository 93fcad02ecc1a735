"""Writes the lineage columns of an input whose row groups cannot keep theirs, one row group after the other."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from icekeeper.row_group_copy.copyable_file import CopyableFile
from icekeeper.row_group_copy.footer_decisions import Lacks
from icekeeper.row_group_copy.new_lineage import encoded_lineage
from icekeeper.row_group_copy.refusal import CannotCopy
from icekeeper.row_group_copy.schema_fit import ParquetSchema
from icekeeper.row_group_copy.spliced_lineage import WrittenLineage
from icekeeper.rows.lineage import LINEAGE_NAMES
from icekeeper.storage.failures import failed_by_store
from icekeeper.storage.storage import Storage

__all__ = ["write_lineage"]


def write_lineage(
    file: CopyableFile, sink: Any, start: int, schema: ParquetSchema, lacks: Lacks, storage: Storage
) -> tuple[WrittenLineage | None, ...]:
    """Write new lineage columns for the row groups of ``file`` to ``sink``, which is at byte ``start``; in their order,
    ``None`` for a row group that needs none.

    They have page indexes unless the new file has none (``lacks``).  Only the values of one row group are in memory,
    and of its columns only these two are decoded, where it has them.

    Raises:
        StorageError: the file cannot be read.
        CannotCopy: the columns that it has cannot be decoded.
    """
    inherited = file.lineage
    wanted = [group.columns < len(schema.columns) for group in file.groups]
    if inherited is None or not any(wanted):
        return tuple(None for _ in wanted)
    with storage.translated(file.path), _opened(file, storage) as stored:
        found: list[WrittenLineage | None] = []
        for one, group, is_wanted in zip(file.groups, file.carried(), wanted, strict=True):
            if not is_wanted:
                found.append(None)
                continue
            values = None if stored is None else _stored_values(stored, one.number)
            chunks, data = encoded_lineage(
                group, inherited.after(one.first_row), values, schema, not lacks.offset_index
            )
            sink.write(data)
            found.append(WrittenLineage(chunks, start))
            start += len(data)
    return tuple(found)


@contextmanager
def _opened(file: CopyableFile, storage: Storage) -> Iterator[pq.ParquetFile | None]:
    """The file, if it has lineage columns of its own."""
    if not file.stores_lineage:
        yield None
        return
    with (
        storage.open_input(file.path) as stream,
        pq.ParquetFile(stream, metadata=file.footer.seen_by_arrow(), page_checksum_verification=True) as opened,
    ):
        yield opened


def _stored_values(file: pq.ParquetFile, number: int) -> pa.Table:
    try:
        return file.read_row_group(number, columns=list(LINEAGE_NAMES), use_threads=False)
    except (pa.ArrowException, OSError) as error:
        if failed_by_store(error):
            raise
        problem = str(error).splitlines()[0]
        raise CannotCopy(f"has row ids in row group {number} that cannot be read: {problem}") from error
