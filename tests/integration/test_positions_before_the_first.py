"""A position delete of a row that no file can have leaves its group as it is, by name, no other one (rule 11)."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from icekeeper.model import FileContent
from icekeeper.policy import Operation
from icekeeper.report.outcome import Status
from support.deletes import commit_deletes, create_by_region, position_delete, region_rows
from support.maintained_table import MaintainedTable, maintained_table


def under_deletes(table: MaintainedTable, position: int) -> None:
    """Two position deletes in either region; one in eu is of that position."""
    create_by_region(table, files=2)
    files = {file.partition[0]: file.file_path for file in table.data_files() if file.content is FileContent.DATA}
    deletes = [position_delete(files[region], n, region) for region in ("us", "eu") for n in (3, 4)]
    commit_deletes(table, [*deletes[:3], position_delete(files["eu"], position, "eu")])


@pytest.mark.parametrize(("operation", "us"), [(Operation.COMPACT, 1), (Operation.REWRITE_POSITION_DELETES, 3)])
def test_a_negative_position_concerns_its_own_group_only(operation: Operation, us: int, tmp_path: Path) -> None:
    """Two data files and two deletes in us become one data file, or two and one delete."""
    with maintained_table(tmp_path) as table:
        under_deletes(table, -1)
        rows = region_rows(table)
        outcome = table.run(operation)
        assert outcome.status is Status.SUCCEEDED
        assert "deletes position -1, which no row has" in outcome.summary
        assert Counter(entry.file.partition for entry in table.entries()) == {("us",): us, ("eu",): 4}
        assert region_rows(table) == rows
