"""Says what a footer states of some row groups only, which readers take for the whole file (rule 200, platform 100)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from icekeeper.row_group_copy.footer_decisions import states_bounds
from icekeeper.row_group_copy.footer_structs import ColumnMetaData, FileMetaData, RowGroup


def mixed_fields(metadata: FileMetaData) -> list[str]:
    """What is said of some row groups only, or of all and wrongly, in words (pure)."""
    groups = [group for group in metadata.row_groups if group.num_rows]
    return list(_mixed_fields(groups)) if len(groups) > 1 else []


def _mixed_fields(groups: Sequence[RowGroup]) -> Iterator[str]:
    chunks = [chunk for group in groups for chunk in group.columns]
    if _differ(group.ordinal is not None for group in groups):
        yield "ordinals of some row groups"
    if _differ(chunk.offset_index_offset is not None for chunk in chunks):
        yield "page indexes of some column chunks"
    if any(group.sorting_columns for group in groups):
        yield "row groups one after the other that are called sorted"
    for column in zip(*(group.columns for group in groups), strict=False):
        metas = [chunk.meta_data for chunk in column]
        name = b".".join(metas[0].path_in_schema).decode(errors="replace")
        if _differ(states_bounds(meta) for meta in metas if not _is_null(meta)):
            yield f"bounds of some row groups of column {name}"
        if _differ(meta.statistics is not None and meta.statistics.null_count is not None for meta in metas):
            yield f"null counts of some row groups of column {name}"


def _is_null(meta: ColumnMetaData) -> bool:
    return meta.statistics is not None and meta.statistics.null_count == meta.num_values


def _differ(answers: Iterable[bool]) -> bool:
    return len(set(answers)) > 1
