"""What is known of the column chunks of a file by its bytes and by Arrow, to be compared before and after a copy.

The proof must not be circular: our own code reads the footers of inputs and writes that of the output.  So Arrow reads
both, too, and says where the chunks lie and what is in them; the bytes of each chunk are hashed as they are read from
the input, and again as they are read back from the output.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow.parquet as pq

from icekeeper.row_group_copy.chunk_checks import Piece
from icekeeper.row_group_copy.footer_decisions import NOTHING_LACKS, Lacks

__all__ = ["RowGroupFacts", "checksum", "row_group_facts"]


@dataclass(frozen=True, slots=True)
class RowGroupFacts:
    """A row group as Arrow sees it: its rows, and for every column chunk the place, the values, how many are null
    (``None``: not told), and a number for all that is said of it, good within this process."""

    rows: int
    pieces: tuple[Piece, ...]
    values: tuple[int, ...]
    nulls: tuple[int | None, ...]
    said: tuple[int, ...]

    def columns(self, count: int) -> RowGroupFacts:
        """The same of the first ``count`` columns."""
        return RowGroupFacts(self.rows, self.pieces[:count], self.values[:count], self.nulls[:count], self.said[:count])

    def and_columns(self, more: RowGroupFacts) -> RowGroupFacts:
        """The same with more columns of the same rows."""
        return RowGroupFacts(
            self.rows,
            self.pieces + more.pieces,
            self.values + more.values,
            self.nulls + more.nulls,
            self.said + more.said,
        )


def row_group_facts(
    footer: pq.FileMetaData, numbers: Iterable[int] | None = None, lacks: Lacks = NOTHING_LACKS
) -> Iterator[RowGroupFacts]:
    """The facts of every row group that has rows, or of those with these numbers.

    ``said`` is what is said where a footer lacks this: nothing is left of it.
    """
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
                said=tuple(
                    _said(chunk, told, i, lacks) for i, (chunk, told) in enumerate(zip(chunks, statistics, strict=True))
                ),
            )


def checksum(data: Any, before: int = 0) -> int:
    """The CRC-32 of bytes that follow those with the checksum ``before``."""
    return zlib.crc32(data, before)


def _piece(chunk: Any) -> Piece:
    start = chunk.dictionary_page_offset if chunk.has_dictionary_page else chunk.data_page_offset
    return Piece(start, start + chunk.total_compressed_size)


def _nulls(statistics: Any) -> int | None:
    return statistics.null_count if statistics is not None and statistics.has_null_count else None


def _said(chunk: Any, statistics: Any, column: int, lacks: Lacks) -> int:
    """A number for all that must be the same in the copy."""
    sizes = chunk.num_values, chunk.total_compressed_size, chunk.total_uncompressed_size
    kinds = chunk.path_in_schema, chunk.physical_type, chunk.compression, chunk.encodings, chunk.has_dictionary_page
    nulls = _nulls(statistics) if lacks.has_null_count(column) else None
    if statistics is None or not statistics.has_min_max or not lacks.has_bounds(column):
        return hash((sizes, kinds, nulls))
    return hash((sizes, kinds, nulls, _text(statistics.min_raw), _text(statistics.max_raw)))


def _text(bound: Any) -> Any:
    """A bound that equals itself: no two NaN do."""
    return repr(bound) if isinstance(bound, float) else bound
