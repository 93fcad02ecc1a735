"""Finds files that Icekeeper wrote before footers spoke with one voice (rule 201).

Only files whose name is one of ours and that have several row groups are looked at, by one ranged read each: footers of
other writers are theirs.  What is mixed is what readers take for the whole file (platform 100).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence

from icekeeper.errors import StorageError
from icekeeper.model import DataFile
from icekeeper.request_count import WorkThreads
from icekeeper.row_group_copy.footer import read_footer
from icekeeper.row_group_copy.footer_decisions import states_bounds
from icekeeper.row_group_copy.footer_structs import ColumnMetaData, FileMetaData, RowGroup
from icekeeper.row_group_copy.refusal import CannotCopy, NotCopyable
from icekeeper.storage.storage import Storage

__all__ = ["footer_problem", "may_be_mixed", "mixed_fields", "mixed_footers"]

# As compaction names its outputs, below whatever folder and behind whatever hash.
_OUR_NAME = re.compile(r"compact-\d+-\d+-[0-9a-f]{8}-[0-9a-f-]+[^/]*\.parquet")
_FOOTERS_AT_ONCE = 16


def may_be_mixed(file: DataFile) -> bool:
    """Whether a data file may have row groups of several writers, as far as its manifest entry tells (pure)."""
    return (
        file.file_format.upper() == "PARQUET"
        and len(file.split_offsets or ()) > 1
        and _OUR_NAME.search(file.file_path.rpartition("/")[2]) is not None
    )


def mixed_footers(
    files: Sequence[DataFile], storage: Storage, on_done: Callable[[int], None] = lambda done: None
) -> dict[str, str]:
    """Path of each file whose footer mixes habits → which, in words; a file that cannot be read is left out.

    ``files`` are those that :func:`may_be_mixed`.
    """

    def look(file: DataFile) -> str | None:
        try:
            return footer_problem(file.file_path, storage, file.file_size_in_bytes)
        except StorageError:
            return None  # whoever reads the file says so

    found: dict[str, str] = {}
    with WorkThreads(_FOOTERS_AT_ONCE, thread_name_prefix="footer") as pool:
        for done, (file, problem) in enumerate(zip(files, pool.map(look, files), strict=True), start=1):
            if problem is not None:
                found[file.file_path] = problem
            on_done(done)
    return found


def footer_problem(path: str, storage: Storage, file_size: int | None = None) -> str | None:
    """What the footer of a file mixes, in words; ``None``: nothing, or it is no footer that this version understands.

    Raises:
        StorageError: the file does not exist, or the store failed.
    """
    footer = read_footer(path, storage, file_size)
    if isinstance(footer, NotCopyable):
        return None
    try:
        mixed = mixed_fields(footer.metadata())
    except CannotCopy:
        return None
    return f"its footer mixes habits of several writers: {', '.join(mixed)}" if mixed else None


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
