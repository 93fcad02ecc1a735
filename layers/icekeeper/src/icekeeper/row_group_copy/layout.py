"""Plans where everything lies in the new file (pure).

    PAR1 | row groups and Bloom filters of input 1, of input 2, … | new lineage columns | column indexes |
    offset indexes | footer

Each input's bytes keep their order.  New lineage columns of all row groups lie together, so that what is copied stays
in large ranges; the format promises one place to a column chunk, none to a row group.  They are encoded when all else
is copied, and move what follows.  Page indexes of all inputs lie near the footer, for readers fetch all of them in one
piece.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import accumulate
from operator import or_

from icekeeper.row_group_copy.copyable_file import CopyableFile
from icekeeper.row_group_copy.footer import MAGIC
from icekeeper.row_group_copy.footer_decisions import NOTHING_LACKS, Lacks
from icekeeper.row_group_copy.refusal import CannotCopy, NotCopyable

__all__ = ["Layout", "Placement", "lay_out"]

_MOST_ROW_GROUPS = 2**15 - 1
"""``RowGroup.ordinal`` has 16 bits."""
_MOST_FOOTER_BYTES = 64 * 1024 * 1024
"""Arrow takes no footer with a text or list above 100 MB; everyone reads all of it to read anything."""


@dataclass(frozen=True, slots=True)
class Placement:
    """Where the parts of one input come to lie."""

    file: CopyableFile
    starts: tuple[int, ...]
    """Where each of the file's ranges begins in the new file."""
    first_row_group: int

    def moved(self, offset: int) -> int:
        """The new place of a byte of one of the file's ranges.

        Raises:
            CannotCopy: it is in none of them.
        """
        ranges = self.file.ranges
        found = bisect_right(ranges, offset, key=lambda piece: piece.start) - 1
        if found < 0 or offset >= ranges[found].end:
            raise CannotCopy(f"refers to byte {offset}, which is not copied")
        return self.starts[found] + offset - ranges[found].start


@dataclass(frozen=True, slots=True)
class Layout:
    """Where the inputs lie, in order."""

    placements: tuple[Placement, ...]
    data_end: int
    """Where the page indexes begin if no lineage columns lie before them."""
    row_groups: int
    lacks: Lacks
    """What the new footer says of no row group, because one of them lacks it."""


def lay_out(files: Sequence[CopyableFile]) -> Layout | NotCopyable:
    """The layout of a file with the row groups of these files, one after the other."""
    data_end = len(MAGIC) + sum(file.copied_bytes for file in files)
    placements: list[Placement] = []
    position, row_groups, footer_bytes = len(MAGIC), 0, 0
    for file in files:
        if file.nullability != files[0].nullability:
            return NotCopyable(file.path, f"requires values in other columns than {files[0].path}")
        starts = tuple(accumulate((piece.size for piece in file.ranges), initial=position))
        placements.append(Placement(file, starts[:-1], row_groups))
        position = starts[-1]
        row_groups += file.row_groups
        footer_bytes += len(file.footer.thrift)
        if row_groups > _MOST_ROW_GROUPS:
            return NotCopyable(file.path, f"would bring an output to more than {_MOST_ROW_GROUPS} row groups")
        if footer_bytes > _MOST_FOOTER_BYTES:
            return NotCopyable(file.path, f"would bring an output to a footer of more than {_MOST_FOOTER_BYTES} bytes")
    lacks = reduce(or_, (group.lacks for file in files for group in file.groups), NOTHING_LACKS)
    return Layout(tuple(placements), data_end, row_groups, lacks)
