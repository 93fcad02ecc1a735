"""Row groups that no key of equality deletes is in are copied; other readers see no difference (rule 151)."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.catalog.sql import SqlCatalog

from icekeeper.model import FileContent
from icekeeper.policy import Operation
from icekeeper.report.outcome import Status
from icekeeper.row_group_copy.footer import Footer
from icekeeper.row_group_copy.footer_structs import CannotCopy
from support.deletes import commit_deletes
from support.maintained_table import ID_AND_PART, MaintainedTable, new_table
from support.readers import canonical, duckdb_rows

GROUPS, ROWS = 4, 500
"""Of each file."""


@pytest.fixture
def table(local_catalog: SqlCatalog, tmp_path: Path) -> MaintainedTable:
    """Two files of four row groups: ids ascend through all of them, texts lie anywhere."""
    made = new_table(local_catalog, tmp_path)
    with made.table.transaction() as change:
        change.set_properties({"write.parquet.row-group-limit": str(ROWS), "format-version": "2"})
    for number in range(2):
        append(made, number * GROUPS * ROWS, GROUPS * ROWS)
    return made


def text(number: int) -> str:
    return hashlib.sha256(str(number).encode()).hexdigest()


def append(table: MaintainedTable, first: int, rows: int) -> None:
    ids = list(range(first, first + rows))
    table.table.append(pa.table({"id": ids, "part": [text(i) for i in ids]}, ID_AND_PART))


def delete(table: MaintainedTable, column: str, keys: Sequence[Any]) -> None:
    """One equality delete file, without bounds."""
    field = ID_AND_PART.field(column)
    field_id = table.table.schema().find_field(column).field_id
    named = pa.field(column, field.type, True, {b"PARQUET:field_id": str(field_id).encode()})
    facts = {"content": FileContent.EQUALITY_DELETES, "partition": (), "equality_ids": (field_id,)}
    commit_deletes(table, [(pa.table({column: pa.array(keys, field.type)}, schema=pa.schema([named])), facts)])


def copied(table: MaintainedTable) -> tuple[list[int], float]:
    """The row groups of the one file that is left, and how many bytes were copied, after a pass that kept all rows."""
    before = canonical(duckdb_rows(table.metadata_location))
    outcome = table.run(Operation.COMPACT, min_row_group_copy_bytes="1000")
    assert outcome.status is Status.SUCCEEDED, outcome
    assert canonical(duckdb_rows(table.metadata_location)) == table.rows() == before
    assert table.live_deletes() == Counter()
    table.assert_sound()
    (file,) = table.data_files()
    footer = pq.read_metadata(file.file_path.removeprefix("file://"))
    return [footer.row_group(n).num_rows for n in range(footer.num_row_groups)], outcome.metrics["compact.bytes_copied"]


def test_row_groups_whose_bounds_exclude_every_key_are_copied(table: MaintainedTable) -> None:
    """Many keys, of the second row group alone: no key column is read."""
    delete(table, "id", range(600, 900))
    groups, _ = copied(table)
    assert groups == [200, *[ROWS] * 7]


def test_few_keys_that_may_be_anywhere_are_looked_up(table: MaintainedTable) -> None:
    delete(table, "part", [text(i) for i in (3, 2700)])
    groups, _ = copied(table)
    assert groups == [2 * ROWS - 2, *[ROWS] * 6]


def test_keys_of_no_row_leave_all_row_groups_as_they_are(table: MaintainedTable) -> None:
    delete(table, "part", ["8 no hash"])
    assert copied(table)[0] == [ROWS] * 8


def test_many_keys_that_may_be_anywhere_decode_everything(table: MaintainedTable) -> None:
    delete(table, "part", [text(i) for i in range(100)])
    assert copied(table) == ([8 * ROWS - 100], 0)


def test_rows_that_came_after_the_delete_are_copied(table: MaintainedTable) -> None:
    """The same ids again: the key is older than their file."""
    delete(table, "id", range(500, 2000))
    append(table, 500, ROWS)
    groups, _ = copied(table)
    assert groups == [*[ROWS] * 6]


def test_null_keys_are_of_rows_with_nulls(table: MaintainedTable) -> None:
    table.table.append(pa.table({"id": list(range(9000, 9500)), "part": [None, *["x" * 60] * 499]}, ID_AND_PART))
    delete(table, "part", [None])
    groups, _ = copied(table)
    assert groups == [499, *[ROWS] * 8]


def test_row_groups_of_which_arrow_tells_nothing_are_decoded(
    table: MaintainedTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(footer: Footer) -> None:
        raise CannotCopy("has a footer that Arrow cannot read")

    delete(table, "id", range(600, 900))
    monkeypatch.setattr(Footer, "seen_by_arrow", refuse)
    assert copied(table) == ([8 * ROWS - 300], 0)
