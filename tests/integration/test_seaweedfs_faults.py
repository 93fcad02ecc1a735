"""What SeaweedFS 4.48's own worker gets wrong in compaction, each fault by a number of its own.

1 sequence numbers of equality deletes, 2 their partitions, 3 position delete files that others cannot read, 4 files of
different schemas, 6 lost column metrics, 8 any concurrent commit fails the job.  Of 9 (no deletion vectors, no row
lineage, identity sorts only, output built in memory) the tests are test_v3, test_row_lineage, test_clustering and
test_engines.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from pyiceberg.table import StaticTable
from pyiceberg.types import StringType

from icekeeper.policy import Operation
from icekeeper.report.outcome import Status
from support.deletes import commit_deletes, compacted, create_by_region, equality_delete, position_delete, rows_of
from support.deletes import region_rows as rows
from support.maintained_table import MaintainedTable, local_path, maintained_table, outcome_of
from support.readers import duckdb_rows


@pytest.fixture
def table(tmp_path: Path) -> Iterator[MaintainedTable]:
    """Partitioned by region, three files of ten rows each: ids 0.., 100.., 200.. in us, 50.., 150.., 250.. in eu."""
    with maintained_table(tmp_path) as made:
        create_by_region(made, 3)
        yield made


def files_planned_for(table: MaintainedTable, where: str) -> int:
    return len(list(StaticTable.from_metadata(table.loaded.metadata_location).scan(where).plan_files()))


def test_fault_1_rows_that_were_inserted_again_are_kept(table: MaintainedTable) -> None:
    """Delete keys, insert them again, compact: SeaweedFS then reports success and has lost the new rows."""
    commit_deletes(table, [equality_delete(key, "us") for key in (100, 101, 102)])
    table.table.append(rows_of(100, 3, "us"))
    expected = rows(table)
    assert [expected[key, "us"] for key in (100, 101, 102)] == [1, 1, 1]
    assert compacted(table, rewrite_all="true").status is Status.SUCCEEDED
    assert rows(table) == expected


def test_fault_2_a_delete_in_one_partition_spares_the_same_key_in_another(table: MaintainedTable) -> None:
    table.table.append(rows_of(103, 1, "eu"))
    expected = rows(table) - Counter([(103, "us")])
    commit_deletes(table, [equality_delete(103, "us")])
    assert compacted(table, rewrite_all="true").metrics["compact.rows_deleted"] == 1
    assert rows(table) == expected


def test_fault_3_merged_position_deletes_are_read_by_others(table: MaintainedTable) -> None:
    """With field ids and plain encoding: PyIceberg, which could not read SeaweedFS's, and DuckDB see the same rows."""
    path = next(t.file.file_path for t in table.table.scan("id = 7 and region = 'us'").plan_files())
    for position in range(5):
        commit_deletes(table, [position_delete(path, position, "us")])
    expected = rows(table)
    outcome = outcome_of(table.maintain(operations="rewrite_position_deletes"), Operation.REWRITE_POSITION_DELETES)
    assert outcome.summary == "rewrote 5 position delete files into 1 (across 1 bins)"
    assert rows(table) == expected
    scan = StaticTable.from_metadata(table.loaded.metadata_location).scan()
    assert Counter((row["id"], row["region"]) for row in scan.to_arrow().to_pylist()) == expected
    (merged,) = {delete.file_path for task in scan.plan_files() for delete in task.delete_files}
    names = pq.read_schema(local_path(merged))
    assert [names.field(n).metadata[b"PARQUET:field_id"] for n in ("file_path", "pos")] == [
        b"2147483546",
        b"2147483545",
    ]


def test_fault_4_files_of_different_schemas_become_one(table: MaintainedTable) -> None:
    """SeaweedFS never merges them, calls that success, and proposes the table again every hour."""
    with table.table.update_schema() as update:
        update.add_column("note", StringType())
    table.table.append(rows_of(300, 5, "us").append_column("note", [["n"] * 5]))
    before = sorted(map(repr, duckdb_rows(table.loaded.metadata_location)))
    assert compacted(table).summary == "compacted 7 files into 2 (across 2 bins)"
    assert sorted(map(repr, duckdb_rows(table.loaded.metadata_location))) == before
    again = compacted(table)
    assert (again.status, again.reason) == (Status.SKIPPED, "no files eligible for compaction")


def test_fault_6_a_planner_prunes_as_well_as_before(table: MaintainedTable) -> None:
    """Entries of rewritten files and rewritten manifests keep column metrics: both kinds of rewrite, then plan."""
    outcome = table.maintain(operations="compact,rewrite_manifests", min_input_files="3")
    assert outcome_of(outcome, Operation.COMPACT).summary == "compacted 6 files into 2 (across 2 bins)"
    table.table.append(rows_of(1000, 10, "us"))
    table.maintain(operations="rewrite_manifests")
    assert files_planned_for(table, "id >= 1000") == 1
    assert files_planned_for(table, "id < 0") == 0
    assert files_planned_for(table, "id = 55") == 1 + 1  # us holds 0 to 209, eu 50 to 259


def test_fault_8_other_commits_do_not_fail_the_job(table: MaintainedTable) -> None:
    """An append between plan and commit: SeaweedFS says "stale plan", here the commit is made again on the new head."""
    table.engine.during = lambda: table.table.append(rows_of(500, 10, "us"))
    expected = rows(table) + Counter((key, "us") for key in range(500, 510))
    assert compacted(table).summary == "compacted 6 files into 2 (across 2 bins)"
    assert rows(table) == expected
