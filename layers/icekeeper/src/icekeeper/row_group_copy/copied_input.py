"""What was copied of one input: its row groups as they were read, and where they come to lie."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from icekeeper.row_group_copy.chunk_checks import Piece, data_pages
from icekeeper.row_group_copy.copyable_file import CopyableFile
from icekeeper.row_group_copy.evidence import RowGroupFacts, row_group_facts
from icekeeper.row_group_copy.footer_decisions import Lacks
from icekeeper.row_group_copy.footer_structs import RowGroup
from icekeeper.row_group_copy.layout import Placement
from icekeeper.row_group_copy.lineage_facts import LineageFacts
from icekeeper.row_group_copy.refusal import CannotCopy
from icekeeper.row_group_copy.schema_fit import ParquetSchema
from icekeeper.row_group_copy.spliced_lineage import WrittenLineage
from icekeeper.row_group_copy.stored_lineage import stored_bounds

__all__ = ["CopiedInput", "CopiedRowGroup", "WrittenCopy", "agreed_facts", "stored_lineage"]


@dataclass(frozen=True, slots=True)
class CopiedRowGroup:
    """A row group as it was read: what Arrow says of it, and the checksum of every column chunk."""

    source: str
    facts: RowGroupFacts
    checksums: tuple[int, ...]
    """Empty where the store copied the bytes, and nobody read them."""
    lineage: LineageFacts | None = None
    """What its columns of row lineage hold, if it has them."""


@dataclass(frozen=True, slots=True)
class WrittenCopy:
    """A new file, and what was read for it."""

    path: str
    size: int
    row_groups: tuple[CopiedRowGroup, ...]
    split_offsets: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class CopiedInput:
    """What was copied of one input, what is known of its pages, and the lineage columns written for it."""

    placement: Placement
    row_groups: tuple[CopiedRowGroup, ...]
    column_index_bytes: int
    """Of the column indexes that are carried over, without those of new lineage columns."""
    indexes: dict[Piece, bytes]
    """Its page indexes, as bytes."""
    pages: dict[Piece, list[Piece]]
    """The data pages of every column chunk."""
    lineage: tuple[WrittenLineage | None, ...] = ()

    @property
    def complete_row_groups(self) -> list[CopiedRowGroup]:
        """The row groups with what is known of their new lineage columns."""
        return [
            group
            if new is None
            else CopiedRowGroup(
                group.source,
                group.facts.and_columns(new.chunks.facts),
                group.checksums + new.chunks.checksums,
                new.chunks.lineage,
            )
            for group, new in zip(self.row_groups, self.lineage, strict=True)
        ]


def agreed_facts(file: CopyableFile, groups: Sequence[RowGroup], lacks: Lacks) -> list[RowGroupFacts]:
    """What Arrow says of what is copied, if it sees the same column chunks in the same places.

    ``lacks`` is what the new footer does not say of it.

    Raises:
        CannotCopy: it does not.
    """
    numbers = [group.number for group in file.groups]
    found = row_group_facts(file.footer.seen_by_arrow(), numbers, lacks)
    facts = [one.columns(len(group.columns)) for one, group in zip(found, groups, strict=True)]
    pieces = [[data_pages(chunk.meta_data) for chunk in group.columns] for group in groups]
    if [list(one.pieces) for one in facts] != pieces:
        raise CannotCopy("has column chunks elsewhere for Arrow than by its footer")
    return facts


def stored_lineage(group: RowGroup, schema: ParquetSchema) -> LineageFacts | None:
    """What the lineage columns hold that are copied."""
    bounds = stored_bounds(group) if schema.has_lineage and len(group.columns) == len(schema.columns) else None
    return None if bounds is None else LineageFacts(bounds)
