"""What one merge has decoded, no later one decodes again, also where memory has cut its row groups (rule 161)."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.catalog.sql import SqlCatalog

from icekeeper.policy import Operation
from icekeeper.report.outcome import OperationOutcome, Status
from support.maintained_table import ID_AND_PART, MaintainedTable, new_table

FILES, ROWS = 12, 10_000
PART = "a text that is always the same, and so takes next to nothing in the file"


@pytest.fixture
def table(local_catalog: SqlCatalog, tmp_path: Path) -> MaintainedTable:
    """Files of 10,000 rows, each of which takes about 0.85 MB in memory and a fiftieth of that on disk."""
    table = new_table(local_catalog, tmp_path)
    for number in range(FILES):
        ids = list(range(number * ROWS, (number + 1) * ROWS))
        table.table.append(pa.table({"id": ids, "part": [PART] * ROWS}, schema=ID_AND_PART))
    return table


def compact(table: MaintainedTable, **settings: str) -> OperationOutcome:
    due = {"expected_scans": "none", "min_input_files": "2", "partition_rest_hours": "0"}
    outcome = table.run(Operation.COMPACT, **due, **settings)
    assert outcome.status is Status.SUCCEEDED, outcome
    return outcome


def in_two(table: MaintainedTable, memory_mb: str) -> int:
    """Have the files merged into two of some row groups each; the bytes of both."""
    size = sum(file.file_size_in_bytes for file in table.data_files())
    half = str(size / 2 / 1024**2)
    first = compact(table, row_group_memory_mb=memory_mb, target_file_size_mb=half, rewrite_all="true")
    assert first.metrics["compact.bytes_copied"] == 0
    files = table.data_files()
    assert len(files) == 2
    assert all(row_groups(file.file_path) > 1 for file in files)
    return sum(file.file_size_in_bytes for file in files)


def row_groups(path: str) -> int:
    return int(pq.read_metadata(path.removeprefix("file://")).num_row_groups)


def test_what_one_merge_decoded_the_next_one_copies(table: MaintainedTable) -> None:
    before = table.rows()
    size = in_two(table, "2")
    second = compact(table, row_group_memory_mb="2")
    assert 0.9 < second.metrics["compact.bytes_copied"] / size < 1
    assert len(table.data_files()) == 1
    assert table.rows() == before


def test_row_groups_that_are_small_in_memory_too_are_decoded(table: MaintainedTable) -> None:
    """Those of 2 MB in memory, where more than 4 MB, a quarter of 17 MB, would be full ones."""
    in_two(table, "2")
    second = compact(table, row_group_memory_mb="17")
    assert second.metrics["compact.bytes_copied"] == 0
