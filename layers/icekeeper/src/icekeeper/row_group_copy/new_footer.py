"""Writes the footer of a new file around row groups that are bytes already, and mends what Arrow wrote (pure).

All row groups of a large output as structures would take some hundred megabytes, so each input's are written when they
are known, and put together here.  Of the key-value metadata only ``iceberg.schema`` stays, where all inputs have the
same.  The rest is about one file (``pandas`` holds its range of row numbers) or about how its writer held the columns
(``ARROW:schema``); rewritten files have none of it either.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import pyarrow.parquet as pq

from icekeeper.row_group_copy.copyable_file import CopyableFile
from icekeeper.row_group_copy.footer_decisions import Lacks, agree, settle
from icekeeper.row_group_copy.footer_structs import ColumnOrder, FileMetaData, KeyValue, RowGroup
from icekeeper.row_group_copy.known_writers import common_writer
from icekeeper.row_group_copy.refusal import CannotCopy
from icekeeper.row_group_copy.schema_fit import ParquetSchema
from icekeeper.row_group_copy.thrift_bytes import read_exactly, write_struct
from icekeeper.row_group_copy.thrift_fields import Empty

__all__ = ["footer_bytes", "with_one_voice", "with_row_groups"]

_VERSION = 2
"""What Arrow writes; readers tell by each page of which kind it is."""
# Bytes that end a structure, and that an empty list takes (Thrift compact protocol).
_STOP = _EMPTY_LIST = 1


def footer_bytes(
    files: Sequence[CopyableFile], row_groups: Sequence[bytes], schema: ParquetSchema, writers: Iterable[bytes] = ()
) -> bytes:
    """The footer of a file with these row groups of these inputs; ``writers`` wrote columns besides.

    Raises:
        CannotCopy: the rows are more than a footer can count.
    """
    metadata = FileMetaData(
        version=_VERSION,
        schema=list(schema.elements),
        num_rows=sum(file.row_count for file in files),
        key_value_metadata=_key_values(files),
        created_by=common_writer({*(file.created_by for file in files if file.row_groups), *writers}),
        column_orders=[ColumnOrder(type_order=Empty()) for _ in schema.columns],
    )
    settle(metadata)
    return with_row_groups(metadata, row_groups)


def with_row_groups(metadata: FileMetaData, row_groups: Sequence[bytes]) -> bytes:
    """The bytes of a footer, which has no row groups itself, with these.

    Raises:
        CannotCopy: a number does not fit its field.
    """
    none = write_struct(metadata)
    before = len(write_struct(FileMetaData(metadata.version, metadata.schema, metadata.num_rows))) - _STOP
    return b"".join((none[: before - _EMPTY_LIST], _list_header(len(row_groups)), *row_groups, none[before:]))


def with_one_voice(thrift: bytes, seen: pq.FileMetaData) -> bytes:
    """A footer that Arrow wrote, and reads as ``seen``, without bounds of some of its row groups only (rule 200).

    Arrow states none of a row group with values of more than 4 KiB, or with NaN alone.  A footer that this version does
    not understand stays as it is.
    """
    mixed = _partly_bounded(seen)
    if not mixed:
        return thrift
    try:
        metadata = read_exactly(FileMetaData, thrift)
    except CannotCopy:
        return thrift
    lacks = Lacks(bounds=sum(1 << column for column in mixed))
    for group in metadata.row_groups:
        for column in mixed:
            agree(group.columns[column], column, lacks)
    return write_struct(metadata)


def _partly_bounded(seen: pq.FileMetaData) -> list[int]:
    """The columns of which some row groups with values state the bounds, and others do not."""
    groups = [seen.row_group(number) for number in range(seen.num_row_groups)]
    found = []
    for column in range(seen.num_columns):
        stated = set()
        for chunk in (group.column(column) for group in groups):
            told = chunk.statistics
            if told is None or not told.has_null_count or told.null_count < chunk.num_values:
                stated.add(told is not None and told.has_min_max)
        if len(stated) > 1:
            found.append(column)
    return found


def _list_header(count: int) -> bytes:
    """What stands before the elements of a list of row groups: taken from such a list, so that Thrift writes it."""
    written = write_struct(FileMetaData(row_groups=[RowGroup()] * count))
    start = len(write_struct(FileMetaData())) - _STOP - _EMPTY_LIST
    return written[start : len(written) - _STOP - count * len(write_struct(RowGroup()))]


def _key_values(files: Sequence[CopyableFile]) -> list[KeyValue] | None:
    # A schema without the lineage columns that were added is not that of the new file.
    schemas = {None if file.gets_lineage else file.iceberg_schema for file in files}
    if len(schemas) == 1 and None not in schemas:
        return [KeyValue(b"iceberg.schema", schemas.pop())]
    return None
