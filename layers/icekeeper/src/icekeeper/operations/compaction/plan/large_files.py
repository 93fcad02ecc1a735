"""Find large files and the places where they are cut (pure).

Files much larger than the target are cut between row groups, never within a row group.  The manifest entry is enough to
decide, so a file whose ``split_offsets`` allow no cut costs a pass no request.  A piece is not cut again, because it
has the row groups that the plan saw.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from itertools import pairwise

from icekeeper.model import DataFile
from icekeeper.policy import Policy

# The largest output that a merge aims at, as a multiple of the target file size.
LARGEST_OUTPUT = Fraction(5, 4)
# Java's SizeBasedFileRewritePlanner, MAX_FILE_SIZE_DEFAULT_RATIO.
_LARGE = Fraction(9, 5)
# A piece is at least this much larger than the bound of small files, because its footer and indexes are not known yet.
_MARGIN = Fraction(21, 20)


def large_from(policy: Policy) -> int:
    """The least size of a large file, in bytes."""
    return int(_LARGE * policy.target_file_size_bytes) + 1


def pieces(file: DataFile, policy: Policy) -> tuple[int, ...]:
    """The number of row groups, in order, of each piece of a large file; empty if the file cannot be cut."""
    offsets = file.split_offsets or ()
    if file.file_size_in_bytes < large_from(policy) or len(offsets) < 2 or file.file_format.upper() != "PARQUET":
        return ()
    # The last row group ends before page indexes, filters and footer, if column sizes are known.
    end = offsets[0] + sum((file.column_sizes or {}).values())
    if not offsets[-1] < end < file.file_size_in_bytes:
        end = file.file_size_in_bytes
    sizes = [end - start for start, end in pairwise((*offsets, end))]
    if min(sizes) < 0 or file.key_metadata is not None:
        return ()
    least = int(_MARGIN * policy.min_file_size_bytes)
    cut = _cut(sizes, least, LARGEST_OUTPUT * policy.target_file_size_bytes, large_from(policy))
    return tuple(map(len, cut)) if len(cut) > 1 else ()


def _cut(sizes: Sequence[int], least: int, most: Fraction, large: int) -> list[Sequence[int]]:
    """Divide the sizes into pieces of ``least`` to about ``most``; a piece of ``large`` or more cannot be cut
    further."""
    total = sum(sizes)
    if total < large:
        return [sizes]
    share = total / math.ceil(total / most)
    parts: list[Sequence[int]] = []
    start = held = 0
    for place, size in enumerate(sizes):
        # Cut at the place nearest to an even share.
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
