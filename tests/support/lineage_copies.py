"""Parquet files of a v3 table to copy: with and without columns of row lineage, and what a reader finds in them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from icekeeper.model import DataFile
from icekeeper.row_group_copy.copyable import CopyTarget
from icekeeper.row_group_copy.footer_structs import NotCopyable
from icekeeper.row_group_copy.merge_files import copyable_file, merge_files
from icekeeper.rows.arrow_schema import arrow_schema
from icekeeper.rows.read_task import with_lineage
from support.copied import MIXED, STORAGE, entry_of, mixed_rows, parquet_file, target_of

LINEAGE = with_lineage(MIXED)


class Input(NamedTuple):
    """A data file by its entry, with its data sequence number; of some only certain row groups are copied."""

    entry: DataFile
    sequence_number: int
    only: Collection[int] | None = None


def lineage_target(schema: Mapping[str, Any] = MIXED, mode: str = "none", **more: Any) -> CopyTarget:
    """A target for rows that keep their ids."""
    return target_of(with_lineage(schema), mode=mode, **more)


def plain_file(path: Path, first: int, first_row_id: int, number: int, rows: int = 60, **options: Any) -> Input:
    """A file without lineage columns, as most writers write it."""
    parquet_file(path, mixed_rows(first, rows), **options)
    return Input(entry_of(path, first_row_id=first_row_id), number)


def lineage_file(
    path: Path,
    first: int,
    stored: tuple[Sequence[int | None], Sequence[int | None]],
    inherits: tuple[int, int] = (0, 0),
    **options: Any,
) -> Input:
    """A file with stored row ids and last changes, of which some may be null; ``inherits`` is ``first_row_id`` and the
    data sequence number."""
    table = mixed_rows(first, len(stored[0]))
    wanted = arrow_schema(LINEAGE)
    for field, values in zip(list(wanted)[-2:], stored, strict=True):
        table = table.append_column(field, pa.array(values, pa.int64()))
    parquet_file(path, table, **options)
    return Input(entry_of(path, first_row_id=inherits[0]), inherits[1])


def merged(inputs: Sequence[Input], path: Path, target: CopyTarget | None = None) -> DataFile | NotCopyable | None:
    """Copy the inputs into one file at ``path``, unless one of them cannot be copied."""
    wanted = target or lineage_target()
    judged = []
    for one in inputs:
        file = copyable_file(one.entry, wanted, STORAGE, one.sequence_number)
        if isinstance(file, NotCopyable):
            return file
        judged.append((one.entry, file if one.only is None else file.only(one.only)))
    return merge_files(judged, str(path), wanted, STORAGE)


def resolved(one: Input) -> list[dict[str, Any]]:
    """The rows of an input as the specification reads them, one by one; they hold ``_row_id`` and the other."""
    path, first = one.entry.file_path, one.entry.first_row_id
    assert first is not None
    footer = pq.read_metadata(path)
    wanted = set(range(footer.num_row_groups)) if one.only is None else set(one.only)
    groups = [number for number in range(footer.num_row_groups) for _ in range(footer.row_group(number).num_rows)]
    found = []
    for position, row in enumerate(pq.read_table(path).to_pylist()):
        if groups[position] not in wanted:
            continue
        row_id, changed = row.get("_row_id"), row.get("_last_updated_sequence_number")
        row["_row_id"] = first + position if row_id is None else row_id
        row["_last_updated_sequence_number"] = one.sequence_number if changed is None else changed
        found.append(row)
    return found


def row_ids(path: str) -> list[tuple[int, int, int]]:
    """Of every row of a copy ``id``, row id and last change, as they are stored."""
    table = pq.read_table(path, columns=["id", "_row_id", "_last_updated_sequence_number"])
    return list(zip(*(column.to_pylist() for column in table.columns), strict=True))
