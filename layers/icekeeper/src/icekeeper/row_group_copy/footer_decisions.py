"""Decides for every optional field whether a copied footer has it (pure).

Writers differ: Java numbers row groups, Arrow does not; some write page indexes, some statistics.  Some readers written
in Rust refuse a file in which only some row groups have a field, or take values of some row groups for those of the
whole file (platform: rust-readers-need-uniform-footers).  So in a new footer a field is given to all row groups,
dropped from all, or kept only if all inputs have it.  :data:`DECISIONS` lists this for the structures of
``parquet.thrift`` (apache/parquet-format); a test fails for a field that is not listed.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

import pyarrow.parquet as pq

from icekeeper.row_group_copy.footer import ParquetColumn, Piece, column_index, offset_index
from icekeeper.row_group_copy.footer_structs import (
    CannotCopy,
    ColumnChunk,
    ColumnMetaData,
    FileMetaData,
    RowGroup,
    SizeStatistics,
    Statistics,
)
from icekeeper.rows.arrow_schema import LeafColumn


class Decision(Enum):
    """Whether a new footer has an optional field."""

    GIVEN = "given to all, whether or not the inputs have it"
    DROPPED = "dropped from all"
    AGREED = "kept where all that share an output have it, else dropped from all"
    OWN = "each keeps its own: it describes the bytes of one column chunk, and readers look at each chunk by itself"
    REFUSED = "a file that has it is decoded"


GIVEN, DROPPED, AGREED, OWN, REFUSED = Decision

DECISIONS: Mapping[type[Any], Mapping[str, Decision]] = {
    RowGroup: {
        "sorting_columns": DROPPED,  # row groups of several files, one after the other, are not sorted
        "file_offset": GIVEN,  # Java assigns row groups to splits by both; parquet-mr 1.12.0 wrote wrong offsets
        "total_compressed_size": GIVEN,
        "ordinal": GIVEN,  # has 16 bits, which limits the row groups of an output
    },
    ColumnChunk: {
        "file_path": REFUSED,
        "meta_data": GIVEN,  # optional in Thrift, required by every reader
        "offset_index_offset": AGREED,  # all column chunks of all row groups, or no page index at all
        "offset_index_length": AGREED,
        "column_index_offset": AGREED,  # by column; only together with offset indexes
        "column_index_length": AGREED,
        "crypto_metadata": REFUSED,
        "encrypted_column_metadata": REFUSED,
    },
    ColumnMetaData: {
        "key_value_metadata": DROPPED,  # a writer's notes about a single file
        "index_page_offset": DROPPED,  # always 0 (no index pages): files with index pages are decoded
        "dictionary_page_offset": OWN,
        "statistics": AGREED,  # by column
        "encoding_stats": OWN,
        "bloom_filter_offset": OWN,
        "bloom_filter_length": OWN,
        "size_statistics": OWN,  # estimates of memory; no reader answers a query from them
        "geospatial_statistics": OWN,  # the box around the shapes of one column chunk
    },
    Statistics: {
        "max": DROPPED,  # deprecated; readers prefer max_value and min_value
        "min": DROPPED,
        "null_count": AGREED,  # by column; without it no statistics of the column are kept
        "distinct_count": DROPPED,  # counts of row groups do not add up to the count of the file
        "max_value": AGREED,  # by column: for all row groups with values, or for none if some must be hidden
        "min_value": AGREED,
        "is_max_value_exact": OWN,  # readers must not take a truncated bound for a value
        "is_min_value_exact": OWN,
        "nan_count": DROPPED,  # a reader may take the count of some row groups for the count of the file
    },
    SizeStatistics: {
        # Later merges use it to estimate the memory of texts.
        "unencoded_byte_array_data_bytes": OWN,
        "repetition_level_histogram": OWN,
        "definition_level_histogram": OWN,
    },
    FileMetaData: {
        "key_value_metadata": AGREED,  # only ``iceberg.schema``
        "created_by": GIVEN,
        "column_orders": GIVEN,
        "encryption_algorithm": REFUSED,
        "footer_signing_key_metadata": REFUSED,
    },
}

_REFUSALS = {"file_path": "keeps column chunks in other files", "encryption_algorithm": "is encrypted"}
_NAMES = {
    decision: {kind: [name for name, made in fields.items() if made is decision] for kind, fields in DECISIONS.items()}
    for decision in Decision
}


def refuse(structure: Any) -> None:
    """Raise CannotCopy if a structure has a field of the kind ``REFUSED``."""
    for name in _NAMES[REFUSED][type(structure)]:
        if getattr(structure, name, None) is not None:  # ``read_exactly`` refuses fields without an attribute
            raise CannotCopy(_REFUSALS[name])


def settle(structure: Any) -> None:
    """Drop the ``DROPPED`` fields; check that all ``GIVEN`` fields are set.

    Raises:
        ValueError: a ``GIVEN`` field is missing, which is a bug.
    """
    for name in _NAMES[DROPPED][type(structure)]:
        setattr(structure, name, None)
    for name in _NAMES[GIVEN][type(structure)]:
        if getattr(structure, name) is None:
            raise ValueError(f"{type(structure).__name__}.{name} is given to all, and missing")


@dataclass(frozen=True, slots=True)
class Lacks:
    """The ``AGREED`` fields that row groups lack; bit ``i`` is for column ``i``.

    ``bounds`` includes the columns whose bounds readers would misread, so that they are dropped.
    """

    bounds: int = 0
    null_counts: int = 0
    column_indexes: int = 0
    offset_index: bool = False
    """Whether some column chunk has no offset index."""

    def __or__(self, other: Lacks) -> Lacks:
        """The fields that a file with the row groups of both lacks."""
        return Lacks(
            self.bounds | other.bounds,
            self.null_counts | other.null_counts,
            self.column_indexes | other.column_indexes,
            self.offset_index or other.offset_index,
        )

    def has_bounds(self, column: int) -> bool:
        """Whether all row groups have bounds of a column, by its number."""
        return not (self.bounds | self.null_counts) >> column & 1

    def has_null_count(self, column: int) -> bool:
        """Whether all row groups have the null count of a column."""
        return not self.null_counts >> column & 1

    def has_column_index(self, column: int) -> bool:
        """Whether all row groups have a column index and all offset indexes."""
        return not self.offset_index and not self.column_indexes >> column & 1


NOTHING_LACKS = Lacks()


def lacks_of(
    chunks: Iterable[ColumnChunk], columns: Sequence[ParquetColumn], without_nan: Collection[int] = ()
) -> Lacks:
    """The fields that these column chunks of a row group lack; ``without_nan``: ids of float columns without NaN."""
    bounds = null_counts = column_indexes = 0
    has_offset_indexes = True
    for number, (chunk, column) in enumerate(zip(chunks, columns, strict=False)):
        meta, bit = chunk.meta_data, 1 << number
        is_hidden = hides_bounds(meta, column.leaf, may_be_nan=column.leaf.field_id not in without_nan)
        if is_hidden or not states_bounds(meta):
            bounds |= bit
        if meta.statistics is None or meta.statistics.null_count is None:
            null_counts |= bit
        if is_hidden or column_index(chunk) is None:
            column_indexes |= bit
        has_offset_indexes = has_offset_indexes and offset_index(chunk) is not None
    return Lacks(bounds, null_counts, column_indexes, not has_offset_indexes)


def agree(chunk: ColumnChunk, column: int, lacks: Lacks) -> None:
    """Drop the fields of a column chunk that the new footer lacks."""
    if lacks.offset_index:
        chunk.offset_index_offset = chunk.offset_index_length = None
    if not lacks.has_column_index(column):
        chunk.column_index_offset = chunk.column_index_length = None
    found = chunk.meta_data.statistics
    if not lacks.has_null_count(column):
        chunk.meta_data.statistics = None
    elif found is not None and not lacks.has_bounds(column):
        chunk.meta_data.statistics = Statistics(null_count=found.null_count)


def kept_column_index(chunk: ColumnChunk, column: int, lacks: Lacks) -> Piece | None:
    """The column index of a column chunk, if the new file has it."""
    return column_index(chunk) if lacks.has_column_index(column) else None


def hides_bounds(meta: ColumnMetaData, leaf: LeafColumn, *, may_be_nan: bool = True) -> bool:
    """Whether readers would misread the bounds of this column chunk.

    This is true of bounds of uuids, and of equal bounds of floats, which readers take for the
    only value.  Equal bounds are correct only if they are not zero, which has two
    signs, and the column certainly contains no NaN.
    """
    if leaf.repeated:
        return False
    if not leaf.has_bounds:
        return True
    if not leaf.is_float or meta.statistics is None:
        return False
    found = meta.statistics
    pairs = (found.min_value, found.max_value), (found.min, found.max)
    return any(_are_misread(least, most, may_be_nan) for least, most in pairs)


def states_bounds(meta: ColumnMetaData) -> bool:
    """Whether a column chunk has bounds, or only nulls."""
    found = meta.statistics
    if found is None:
        return False
    return None not in (found.min_value, found.max_value) or found.null_count == meta.num_values


def _are_misread(least: bytes | None, most: bytes | None, may_be_nan: bool) -> bool:
    if least is None or most is None:
        return False
    if len(least) != len(most) or len(least) not in (4, 8):
        return True  # the bounds are not floats
    kind = "<f" if len(least) == 4 else "<d"
    low, high = struct.unpack(kind, least)[0], struct.unpack(kind, most)[0]
    return not low < high and (may_be_nan or low != high or low == 0)


# Facts to compare before and after a copy.  Our own code reads the footers of inputs and writes the footer of the
# output, so a proof by our code would be circular.  Therefore Arrow also reads both footers.  The bytes of each chunk
# are hashed when they are read from the input, and again when they are read back from the output.


@dataclass(frozen=True, slots=True)
class RowGroupFacts:
    """A row group as read by Arrow: its number of rows, and a tuple item for every column chunk."""

    rows: int
    pieces: tuple[Piece, ...]
    values: tuple[int, ...]
    nulls: tuple[int | None, ...]
    """Null counts; ``None``: not known."""
    digests: tuple[int, ...]
    """A hash of the rest of the description, valid within this process."""

    def columns(self, count: int) -> RowGroupFacts:
        """The same for the first ``count`` columns."""
        return RowGroupFacts(
            self.rows, self.pieces[:count], self.values[:count], self.nulls[:count], self.digests[:count]
        )

    def and_columns(self, more: RowGroupFacts) -> RowGroupFacts:
        """The same with more columns of the same rows."""
        return RowGroupFacts(
            self.rows,
            self.pieces + more.pieces,
            self.values + more.values,
            self.nulls + more.nulls,
            self.digests + more.digests,
        )


def row_group_facts(
    footer: pq.FileMetaData, numbers: Iterable[int] | None = None, lacks: Lacks = NOTHING_LACKS
) -> Iterator[RowGroupFacts]:
    """The facts of every row group that has rows, or only of these ``numbers``; ``digests`` omits ``lacks``."""
    for number in range(footer.num_row_groups) if numbers is None else numbers:
        group = footer.row_group(number)
        if group.num_rows:
            chunks = [group.column(i) for i in range(group.num_columns)]
            statistics = [chunk.statistics for chunk in chunks]
            yield RowGroupFacts(
                rows=group.num_rows,
                pieces=tuple(map(_piece, chunks)),
                values=tuple(chunk.num_values for chunk in chunks),
                nulls=tuple(map(_nulls, statistics)),
                digests=tuple(
                    _digest(chunk, stats, i, lacks)
                    for i, (chunk, stats) in enumerate(zip(chunks, statistics, strict=True))
                ),
            )


def _piece(chunk: Any) -> Piece:
    start = chunk.dictionary_page_offset if chunk.has_dictionary_page else chunk.data_page_offset
    return Piece(start, start + chunk.total_compressed_size)


def _nulls(statistics: Any) -> int | None:
    return statistics.null_count if statistics is not None and statistics.has_null_count else None


def _digest(chunk: Any, statistics: Any, column: int, lacks: Lacks) -> int:
    """A hash of everything that must be the same in the copy."""
    sizes = chunk.num_values, chunk.total_compressed_size, chunk.total_uncompressed_size
    kinds = chunk.path_in_schema, chunk.physical_type, chunk.compression, chunk.encodings, chunk.has_dictionary_page
    nulls = _nulls(statistics) if lacks.has_null_count(column) else None
    if statistics is None or not statistics.has_min_max or not lacks.has_bounds(column):
        return hash((sizes, kinds, nulls))
    # The text of a float equals itself, which NaN does not.
    bounds = (repr(bound) if isinstance(bound, float) else bound for bound in (statistics.min_raw, statistics.max_raw))
    return hash((sizes, kinds, nulls, *bounds))


# Writers.  Readers recognise versions that wrote wrong statistics or pages by ``created_by``, and work around their
# errors.  A file has a single such name for all row groups, so files that need a workaround are never copied.  Files
# without a version are not copied either: parquet-mr ignores their bounds of text, and would not under another name.
#
# Sources: parquet-mr's ``CorruptStatistics`` and ``CorruptDeltaByteArrays`` (PARQUET-251, PARQUET-246); Arrow's
# ``ApplicationVersion`` (statistics before parquet-mr 1.10.0 and parquet-cpp 1.3.0, PARQUET-816; ARROW-10353: before
# 3.0.0 compressed pages were marked as not compressed).

# Limits the time of the search in a damaged name.
_LONGEST = 200
_NAME = re.compile(r"(\S.*?)\s+version\s+v?(\d+)\.(\d+)(?:\.(\d+))?.*", re.DOTALL)
# Application → its first version that needs no workaround; None: no version under that name is free of faults.
_FIRST_RIGHT: dict[str, tuple[int, int, int] | None] = {
    "parquet-mr": (1, 10, 0),
    "parquet-cpp": None,  # its successor is parquet-cpp-arrow
    "parquet-cpp-arrow": (3, 0, 0),
}
# Application → the first version whose bounds and null counts are correct for every type that is copied
# (rule: footer-bounds-by-known-writers).  Other writers may be wrong: parquet-go orders decimals as unsigned numbers
# (parquet-go 592), and most writers have not been checked.
_FIRST_EXACT: dict[str, tuple[int, int, int]] = {
    "parquet-mr": (1, 10, 1),  # PARQUET-1025; its CHANGES.md, 1.10.1
    # Decimals (PARQUET-1655) before 4; null counts (ARROW-12513) and bounds (arrow 15042, 34106) of dictionaries.
    "parquet-cpp-arrow": (12, 0, 0),
    "parquet-rs": (56, 0, 0),  # arrow-rs 1532, 2015, 7593; 10860 is about decimals of variable length, never copied
    "datafusion": (50, 0, 0),  # it writes by parquet-rs 56 and later (datafusion 17275)
    "duckdb": (1, 5, 5),  # measured: tests/unit/test_copied_parts.py
    "icekeeper": (1, 0, 0),  # see common_writer
}
_OURS = b"icekeeper version 1.0.0 (build copied row groups of several writers)"
_OURS_OF_UNKNOWN = b"icekeeper version 0.9.0 (build copied row groups of several writers, some unknown)"


def has_right_statistics(created_by: bytes | None) -> bool:
    """Whether the bounds and counts in a footer of this writer are known to be correct."""
    writer = _writer(created_by)
    if writer is None:
        return False
    first = _FIRST_EXACT.get(writer[0])
    return first is not None and writer[1] >= first


def _writer(created_by: bytes | None) -> tuple[str, tuple[int, int, int]] | None:
    """The application in lower case, and its version; ``None``: they are not named."""
    found = _NAME.fullmatch((created_by or b"").decode(errors="replace")[:_LONGEST])
    return None if found is None else (found[1].lower(), (int(found[2]), int(found[3]), int(found[4] or 0)))


def check_writer(created_by: bytes | None) -> None:
    """Raise CannotCopy for a version that needs workarounds, or that is not known."""
    text = (created_by or b"").decode(errors="replace")
    writer = _writer(created_by)
    if writer is None:
        raise CannotCopy(
            f"was written by '{text[:80]}', which names no version" if text else "does not name its writer"
        )
    application, version = writer
    if application not in _FIRST_RIGHT:
        return
    right = _FIRST_RIGHT[application]
    if right is None or version < right:
        raise CannotCopy(f"was written by '{text[:80]}', a version with faults that readers work around by its name")


def common_writer(names: set[bytes]) -> bytes:
    """The ``created_by`` of a file with row groups of these writers."""
    if len(names) == 1:
        return next(iter(names))
    return _OURS if all(map(has_right_statistics, names)) else _OURS_OF_UNKNOWN
