"""Says where outputs have smaller row groups than the table asks for, because memory allows no larger ones (pure)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import pairwise

from icekeeper.model import DataFile
from icekeeper.operations.compaction.writing.parquet_options import row_group_bytes
from icekeeper.policy import Policy
from icekeeper.policy.values import text_of

__all__ = ["cut_row_groups", "cut_sentence"]

# Row groups end with a batch, and the first one is a guess: below this share of the wanted size something cut them.
_CUT = 0.75
_PROPERTY = "write.parquet.row-group-size-bytes"
_MEGABYTE = 1024 * 1024


def cut_row_groups(files: Iterable[DataFile], properties: Mapping[str, str]) -> list[int]:
    """The encoded bytes of the row groups that memory cut: all but a file's first and last that are too small."""
    wanted = row_group_bytes(properties)
    return [size for file in files for size in _inner_sizes(file) if size < _CUT * wanted]


def cut_sentence(sizes: list[int], properties: Mapping[str, str], policy: Policy) -> str:
    """A clause for the summary; empty unless the table asks for a size itself and did not get it."""
    if not sizes or _PROPERTY not in properties:
        return ""
    average = sum(sizes) / len(sizes) / _MEGABYTE
    return (
        f"; row groups are of {average:.0f} MB, below {_PROPERTY}, because they may fill "
        f"{text_of(policy.row_group_memory_mb)} MB of memory (row_group_memory_mb)"
    )


def _inner_sizes(file: DataFile) -> Iterator[int]:
    offsets = file.split_offsets or ()
    yield from (after - before for before, after in list(pairwise(offsets))[1:])
