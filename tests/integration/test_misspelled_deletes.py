"""Position deletes that name their data file in another spelling: for readers they delete nothing (rule 177)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from icekeeper.model import FileContent
from icekeeper.policy import Operation
from icekeeper.report.outcome import Status
from support.deletes import commit_deletes, create_by_region, position_delete, region_rows
from support.maintained_table import MaintainedTable, maintained_table


def under_deletes(table: MaintainedTable, *, spelled: str, named: bool) -> list[str]:
    """Two delete files of rows in us, whose paths begin so; the delete files' paths."""
    create_by_region(table, files=2)
    data = [f.file_path for f in table.data_files() if f.content is FileContent.DATA and f.partition == ("us",)]
    paths = [f"{spelled}{path.removeprefix('file://')}" for path in data]
    deletes: list[tuple[pa.Table, dict[str, Any]]] = []
    for position in (3, 4):
        one, about = position_delete(paths[0], position, "us", bounds=named)
        other, _ = position_delete(paths[1], position, "us", bounds=named)
        deletes.append((one if named else pa.concat_tables([one, other]), about))
    commit_deletes(table, deletes)
    return [f.file_path for f in table.data_files() if f.content is FileContent.POSITION_DELETES]


@pytest.mark.parametrize("operation", [Operation.COMPACT, Operation.REWRITE_POSITION_DELETES])
@pytest.mark.parametrize(("spelled", "named"), [("", True), ("file:", False)])
def test_a_delete_in_another_spelling_is_neither_applied_nor_dropped(
    operation: Operation, spelled: str, named: bool, tmp_path: Path
) -> None:
    with maintained_table(tmp_path) as table:
        deletes = under_deletes(table, spelled=spelled, named=named)
        rows = region_rows(table)
        outcome = table.run(operation, rewrite_all=True)
        assert outcome.status is Status.FAILED
        assert f"deletes rows of {spelled}/" in str(outcome.reason)
        assert "which the manifests spell file:///" in str(outcome.reason)
        assert [f.file_path for f in table.data_files() if f.content is FileContent.POSITION_DELETES] == deletes
        assert (region_rows(table), rows.total()) == (rows, 40)
