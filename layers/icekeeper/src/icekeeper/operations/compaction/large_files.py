"""Where files that are much larger than the target are cut: between row groups, never within one (rule 235) (pure).

Only the manifest entry is asked, so a file whose ``split_offsets`` leave no place to cut it costs a pass nothing.  A
piece is cut no further, because it has the row groups that the plan saw.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from itertools import pairwise

from icekeeper.model import DataFile
from icekeeper.policy import Policy

__all__ = ["LARGEST_OUTPUT", "is_large", "large_from", "pieces"]

# The largest output that a merge aims at, as a multiple of the target file size.
LARGEST_OUTPUT = Fraction(5, 4)
# Java's SizeBasedFileRewritePlanner, MAX_FILE_SIZE_DEFAULT_RATIO.
_LARGE = Fraction(9, 5)
# A piece is so much above the bound of small files at least, because its footer and page indexes are not known yet.
_MARGIN = Fraction(21, 20)


def large_from(policy: Policy) -> int:
    """From so many bytes on a file is large."""
    return int(_LARGE * policy.target_file_size_bytes) + 1


def is_large(file: DataFile, policy: Policy) -> bool:
    """Whether a file is larger, by far, than merges leave it."""
    return file.file_size_in_bytes >= large_from(policy)


def pieces(file: DataFile, policy: Policy) -> tuple[int, ...]:
    """How many row groups, in order, each piece of a large file gets; empty: it cannot be cut."""
    offsets = file.split_offsets or ()
    if not is_large(file, policy) or len(offsets) < 2 or file.file_format.upper() != "PARQUET":
        return ()
    sizes = [end - start for start, end in pairwise((*offsets, _end_of_rows(file, offsets)))]
    if min(sizes) < 0 or file.key_metadata is not None:
        return ()
    least = int(_MARGIN * policy.min_file_size_bytes)
    cut = _cut(sizes, least, LARGEST_OUTPUT * policy.target_file_size_bytes, large_from(policy))
    return tuple(map(len, cut)) if len(cut) > 1 else ()


def _end_of_rows(file: DataFile, offsets: Sequence[int]) -> int:
    """Where the last row group ends: page indexes, filters and footer behind it are no part of it, if that is known."""
    end = offsets[0] + sum((file.column_sizes or {}).values())
    return end if offsets[-1] < end < file.file_size_in_bytes else file.file_size_in_bytes


def _cut(sizes: Sequence[int], least: int, most: Fraction, large: int) -> list[Sequence[int]]:
    """The sizes in pieces of ``least`` to about ``most``; pieces from ``large`` on cannot be cut further."""
    total = sum(sizes)
    if total < large:
        return [sizes]
    share = total / math.ceil(total / most)
    parts: list[Sequence[int]] = []
    start = held = 0
    for place, size in enumerate(sizes):
        # Cut where that comes nearest to an even share.
        if held >= least and held + size / 2 > share:
            parts.append(sizes[start:place])
            start, held = place, 0
        held += size
    if held >= least or not parts:
        parts.append(sizes[start:])
    else:
        parts[-1] = [*parts[-1], *sizes[start:]]
    if len(parts) == 1:
        return parts
    return [piece for part in parts for piece in _cut(part, least, most, large)]
