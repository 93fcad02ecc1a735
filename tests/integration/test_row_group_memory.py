"""Row groups have the encoded size that the table asks for, up to a bound of memory; where it cuts, that is said."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.catalog.sql import SqlCatalog

from icekeeper.policy import Operation
from support.maintained_table import ID_AND_PART, MaintainedTable, new_table

FILES, ROWS = 6, 10_000
ALL = {"rewrite_all": "true", "strategy": "binpack"}


@pytest.fixture
def table(local_catalog: SqlCatalog, tmp_path: Path) -> MaintainedTable:
    """Six files of 10,000 rows, each of which takes about 130 KB in memory and is read as one batch."""
    table = new_table(local_catalog, tmp_path)
    for number in range(FILES):
        ids = [7919 * one for one in range(number * ROWS, (number + 1) * ROWS)]
        table.table.append(pa.table({"id": ids, "part": ["p"] * ROWS}, schema=ID_AND_PART))
    with table.table.transaction() as change:
        change.set_properties({"write.parquet.row-group-size-bytes": str(200 * 1024)})
    return table


def test_the_bound_cuts_and_says_so(table: MaintainedTable) -> None:
    outcome = table.run(Operation.COMPACT, **ALL, row_group_memory_mb="0.05")
    (file,) = table.data_files()
    footer = pq.read_metadata(file.file_path.removeprefix("file://"))
    assert footer.num_row_groups == FILES
    assert outcome.metrics["compact.row_groups_cut"] == FILES - 2  # the first and the last do not count
    assert outcome.summary.endswith("because they may fill 0.05 MB of memory (row_group_memory_mb)")
    assert len(table.ids()) == FILES * ROWS


def test_within_the_bound_nothing_is_said(table: MaintainedTable) -> None:
    outcome = table.run(Operation.COMPACT, **ALL)
    assert outcome.metrics["compact.row_groups_cut"] == 0
    assert outcome.summary == "compacted 6 files into 1 (across 1 bins)"
