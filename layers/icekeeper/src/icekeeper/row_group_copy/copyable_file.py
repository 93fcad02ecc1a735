"""A file whose row groups can be copied, and each of these row groups (pure)."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from icekeeper.row_group_copy.chunk_checks import Piece, joined
from icekeeper.row_group_copy.footer import Footer
from icekeeper.row_group_copy.footer_decisions import Lacks
from icekeeper.row_group_copy.footer_structs import RowGroup
from icekeeper.rows.lineage import InheritedLineage

__all__ = ["CopyableFile", "CopyableRowGroup", "FloatFacts", "counted_bytes", "ranges_of"]


@dataclass(frozen=True, slots=True)
class FloatFacts:
    """How many NaN a column chunk holds and, if it was decoded, its bounds; ``None``: it has no numbers."""

    nans: int
    bounds: tuple[float, float] | None = None
    is_decoded: bool = False


@dataclass(frozen=True, slots=True)
class CopyableRowGroup:
    """A row group that has rows."""

    number: int
    """Its place among all row groups of the footer, from 0."""
    first_row: int
    """The position of its first row in the file."""
    row_count: int
    lacks: Lacks
    """What the description of its columns lacks of that in which all row groups of an output must agree."""
    ranges: tuple[Piece, ...]
    """The bytes to copy, ascending: column chunks and Bloom filters."""
    column_index_bytes: int
    """Of all its column indexes."""
    memory_bytes: int
    """At least what its rows take as Arrow has them."""
    columns: int
    """So many of its columns are copied; those of row lineage behind them, if any, are encoded anew."""
    floats: Mapping[int, FloatFacts] = field(default_factory=dict)
    """What it holds in float columns whose NaN the file's manifest entry does not count, by field id."""

    @property
    def positions(self) -> range:
        """The positions of its rows in the file, as position deletes name them."""
        return range(self.first_row, self.first_row + self.row_count)

    @property
    def copied_bytes(self) -> int:
        return sum(piece.size for piece in self.ranges)


@dataclass(frozen=True, slots=True)
class CopyableFile:
    """A file whose row groups can be copied, all of them or some; holds little besides the footer's bytes."""

    footer: Footer
    groups: tuple[CopyableRowGroup, ...]
    """The row groups to copy, in order; those without rows are not carried over."""
    ranges: tuple[Piece, ...]
    """The bytes to copy, ascending: column chunks and Bloom filters."""
    nullability: bytes
    """As :attr:`.ParquetSchema.nullability`: only files with the same can share an output."""
    created_by: bytes
    iceberg_schema: bytes | None
    """What Iceberg-Java writes under ``iceberg.schema``."""
    lineage: InheritedLineage | None
    """What the file's rows inherit, if outputs have columns of row lineage."""
    stores_lineage: bool
    """Whether the file has such columns itself; they may hold nulls, for rows that inherit."""

    @property
    def path(self) -> str:
        return self.footer.path

    @property
    def gets_lineage(self) -> bool:
        """Whether columns of row lineage are added."""
        return self.lineage is not None and not self.stores_lineage

    @property
    def row_groups(self) -> int:
        return len(self.groups)

    @property
    def row_count(self) -> int:
        return sum(group.row_count for group in self.groups)

    @property
    def has_page_index(self) -> bool:
        """Whether every column chunk to copy has an offset index."""
        return not any(group.lacks.offset_index for group in self.groups)

    @property
    def column_index_bytes(self) -> int:
        """Of all column indexes; not all of them may be carried over."""
        return sum(group.column_index_bytes for group in self.groups)

    @property
    def copied_bytes(self) -> int:
        return sum(piece.size for piece in self.ranges)

    @property
    def memory_bytes(self) -> int:
        """At least what the rows to copy take as Arrow has them."""
        return sum(group.memory_bytes for group in self.groups)

    def carried(self) -> list[RowGroup]:
        """The row groups to copy as the footer describes them, with the columns to copy; the answer may be changed."""
        found = self.footer.metadata().row_groups
        groups = []
        for one in self.groups:
            group = found[one.number]
            dropped = sum(chunk.meta_data.total_uncompressed_size for chunk in group.columns[one.columns :])
            groups.append(
                replace(group, columns=group.columns[: one.columns], total_byte_size=group.total_byte_size - dropped)
            )
        return groups

    def only(self, numbers: Collection[int]) -> CopyableFile:
        """The same file, of which only the row groups with these numbers are copied.

        Raises:
            ValueError: one of them is not among the row groups to copy.
        """
        wanted = set(numbers)
        groups = tuple(group for group in self.groups if group.number in wanted)
        if len(groups) != len(wanted):
            missing = min(wanted - {group.number for group in groups})
            raise ValueError(f"{self.path} has no row group {missing} to copy")
        return replace(self, groups=groups, ranges=ranges_of(groups))


def counted_bytes(size: int, memory: int, least: int, full: int) -> int:
    """The bytes of row groups, as far as they tell how large these are beside ``least`` for each (rule 161).

    ``full`` bytes of ``memory`` count as ``least`` in the file, because memory is what ends a row group whose rows
    take far fewer bytes there; decoding them again would give no larger ones.
    """
    return max(size, memory * least // full)


def ranges_of(groups: Sequence[CopyableRowGroup]) -> tuple[Piece, ...]:
    """The bytes of row groups, ascending, in as few ranges as possible."""
    return tuple(joined(sorted(piece for group in groups for piece in group.ranges)))
