"""Describes copied row groups in their new place, and writes the new footer (pure).

The decoded row groups of a large output would take hundreds of megabytes.  So the row groups of each input are encoded
as soon as they are known, and joined here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise

import pyarrow.parquet as pq

from icekeeper.row_group_copy.copyable import CopyableFile, Placement
from icekeeper.row_group_copy.footer import ParquetSchema, Piece, bloom_filter, data_pages, offset_index
from icekeeper.row_group_copy.footer_decisions import Lacks, agree, common_writer, kept_column_index, settle
from icekeeper.row_group_copy.footer_structs import (
    CannotCopy,
    ColumnOrder,
    Empty,
    FileMetaData,
    KeyValue,
    OffsetIndex,
    PageLocation,
    RowGroup,
    read_exactly,
    write_struct,
)

_VERSION = 2
"""The version that Arrow writes; readers take the kind of each page from its header."""
# Bytes of the end of a structure, and of an empty list (Thrift compact protocol).
_STOP = _EMPTY_LIST = 1


def footer_bytes(
    files: Sequence[CopyableFile], row_groups: Sequence[bytes], schema: ParquetSchema, writers: Iterable[bytes] = ()
) -> bytes:
    """The footer of a file with these encoded row groups of these inputs; ``writers``: those of additional columns."""
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
    """The bytes of a footer with these row groups added; ``metadata`` has none.  Raises CannotCopy if a number does
    not fit."""
    none = write_struct(metadata)
    before = len(write_struct(FileMetaData(metadata.version, metadata.schema, metadata.num_rows))) - _STOP
    return b"".join((none[: before - _EMPTY_LIST], _list_header(len(row_groups)), *row_groups, none[before:]))


def without_partial_bounds(thrift: bytes, seen: pq.FileMetaData) -> bytes:
    """A footer that Arrow wrote, without the bounds of columns that only some row groups have.

    ``seen``: the same footer, decoded by Arrow.  Arrow writes no bounds for a column chunk with values above 4 KiB, or
    with only NaN.  A footer with fields that this version does not know is not changed.
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
    """The columns with bounds in some row groups that have values, but not in all."""
    groups = [seen.row_group(number) for number in range(seen.num_row_groups)]
    found = []
    for column in range(seen.num_columns):
        stated = set()
        for chunk in (group.column(column) for group in groups):
            stats = chunk.statistics
            if stats is None or not stats.has_null_count or stats.null_count < chunk.num_values:
                stated.add(stats is not None and stats.has_min_max)
        if len(stated) > 1:
            found.append(column)
    return found


def _list_header(count: int) -> bytes:
    """The bytes before the elements of a list of row groups, cut out of such a list as Thrift writes it."""
    written = write_struct(FileMetaData(row_groups=[RowGroup()] * count))
    start = len(write_struct(FileMetaData())) - _STOP - _EMPTY_LIST
    return written[start : len(written) - _STOP - count * len(write_struct(RowGroup()))]


def _key_values(files: Sequence[CopyableFile]) -> list[KeyValue] | None:
    # Only ``iceberg.schema`` is kept, if it is the same in all inputs and the new file has no additional columns.
    # Other keys describe a single file (``pandas``: row numbers) or its writer's columns (``ARROW:schema``).
    schemas = {None if file.gets_lineage else file.iceberg_schema for file in files}
    if len(schemas) == 1 and None not in schemas:
        return [KeyValue(b"iceberg.schema", schemas.pop())]
    return None


# Row groups in their new place: every offset in a footer or page index changes.


def indexes_of(group: RowGroup, lacks: Lacks) -> list[Piece]:
    """The page indexes to read of a row group: column indexes that the new file has, and all offset indexes."""
    found = column_indexes_of(group, lacks)
    found += (piece for chunk in group.columns if (piece := offset_index(chunk)) is not None)
    return found


def column_indexes_of(group: RowGroup, lacks: Lacks) -> list[Piece]:
    """The column indexes of a row group that the new file has."""
    kept = (kept_column_index(chunk, number, lacks) for number, chunk in enumerate(group.columns))
    return [piece for piece in kept if piece is not None]


class MovedRowGroups:
    """The row groups of the new file, and their page indexes, all encoded; inputs are added in order."""

    def __init__(self, column_indexes_start: int, offset_indexes_start: int, lacks: Lacks) -> None:
        """Both kinds of page indexes begin at these offsets of the new file."""
        self.row_groups: list[bytes] = []
        self.split_offsets: list[int] = []
        self.column_indexes = bytearray()
        self.offset_indexes = bytearray()
        self._column_indexes_start = column_indexes_start
        self._offset_indexes_start = offset_indexes_start
        self._lacks = lacks

    def add(
        self,
        groups: list[RowGroup],
        placement: Placement,
        indexes: Mapping[Piece, bytes],
        pages: Mapping[Piece, list[Piece]],
    ) -> None:
        """Add the row groups of an input; ``groups`` is changed.

        ``indexes``: the bytes of their page indexes; ``pages``: the data pages that were found in each column chunk.

        Raises:
            CannotCopy: an offset index contradicts the footer or the pages.
        """
        for number, group in enumerate(groups, placement.first_row_group):
            for column, chunk in enumerate(group.columns):
                meta = chunk.meta_data
                here = data_pages(meta)
                shift = placement.moved(here.start) - here.start
                agree(chunk, column, self._lacks)
                bloom, places = bloom_filter(meta), offset_index(chunk)
                bounds = kept_column_index(chunk, column, self._lacks)
                # Deprecated; newer writers write 0.  Some writers wrote the end of the chunk, which is not needed here.
                chunk.file_offset = chunk.file_offset + shift if here.start <= chunk.file_offset < here.end else 0
                meta.data_page_offset += shift
                meta.dictionary_page_offset = (
                    meta.dictionary_page_offset + shift if meta.dictionary_page_offset else None
                )
                if bloom is not None:
                    meta.bloom_filter_offset = placement.moved(bloom.start)
                if bounds is not None:
                    chunk.column_index_offset = self._column_indexes_start + len(self.column_indexes)
                    self.column_indexes += indexes[bounds]
                if places is not None:
                    moved = _moved_places(indexes[places], pages[here], shift, group.num_rows)
                    chunk.offset_index_offset = self._offset_indexes_start + len(self.offset_indexes)
                    chunk.offset_index_length = len(moved)
                    self.offset_indexes += moved
                for structure in (chunk, meta, meta.statistics):
                    if structure is not None:
                        settle(structure)
            # parquet-mr 1.12.0 wrote wrong offsets (PARQUET-2078)
            group.file_offset = min(data_pages(chunk.meta_data).start for chunk in group.columns)
            group.total_compressed_size = sum(chunk.meta_data.total_compressed_size for chunk in group.columns)
            group.ordinal = number
            settle(group)
            self.split_offsets.append(group.file_offset)
            self.row_groups.append(write_struct(group))


def _moved_places(data: bytes, pages: list[Piece], shift: int, rows: int) -> bytes:
    index = read_exactly(OffsetIndex, data)
    found = [Piece(place.offset, place.offset + place.compressed_page_size) for place in index.page_locations]
    if found != pages:
        raise CannotCopy("has an offset index that names other pages than there are")
    firsts = [place.first_row_index for place in index.page_locations]
    if not firsts or firsts[0] != 0 or firsts[-1] >= rows or any(b < a for a, b in pairwise(firsts)):
        raise CannotCopy("has an offset index that numbers rows wrongly")
    moved = [PageLocation(p.offset + shift, p.compressed_page_size, p.first_row_index) for p in index.page_locations]
    return write_struct(replace(index, page_locations=moved))
