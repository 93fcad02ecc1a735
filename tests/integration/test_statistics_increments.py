"""Which files statistics are computed from again, and that nothing that was deleted is counted."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.types import DoubleType, LongType

from icekeeper.policy import Operation
from icekeeper.report.outcome import Status
from icekeeper.rows import apply_deletes
from support.deletes import commit_deletes, create_by_region, equality_delete, position_delete, rows_of
from support.maintained_table import MaintainedTable, local_path, maintained_table, outcome_of
from support.table_statistics import UP_TO_DATE, computed, computed_from, entry, ndv, previewed, rows_read, true_ndv
from support.v3 import data_files, delete_positions, upgrade


@pytest.fixture
def table(tmp_path: Path) -> Iterator[MaintainedTable]:
    """Partitioned by region, two files of ten rows each in us and in eu: forty ids."""
    with maintained_table(tmp_path) as made:
        create_by_region(made, 2)
        yield made


def test_rewrites_carry_statistics_over_and_nothing_is_read(table: MaintainedTable) -> None:
    computed(table)
    before = entry(table)
    assert outcome_of(table.maintain(operations="compact"), Operation.COMPACT).status is Status.SUCCEEDED
    assert previewed(table).summary == "would carry over 2 statistics; would count partitions"
    outcome = computed(table)
    assert outcome.summary == "carried over 2 statistics; partition statistics of 2 partition(s)"
    assert rows_read(outcome) == (Status.SUCCEEDED, 0, 0)
    assert outcome.files_planned == ()
    assert entry(table)["blob-metadata"] == before["blob-metadata"]
    assert entry(table)["statistics-path"] != before["statistics-path"]
    assert computed(table).reason == UP_TO_DATE
    # Expiry takes the snapshot and its statistics, but not those of the head.
    table.maintain(operations="expire_snapshots")
    assert computed_from(table).isdisjoint(table.loaded.metadata.snapshots)
    assert computed(table).reason == UP_TO_DATE
    table.assert_sound()
    table.table.append(rows_of(5, 10, "us"))
    assert rows_read(computed(table)) == (Status.SUCCEEDED, 10, 1)
    assert ndv(table) == true_ndv(table) == {1: 45, 2: 2}


def test_after_appends_only_new_files_are_read(table: MaintainedTable) -> None:
    """Rewritten meanwhile or not: the files are those that the appends added."""
    computed(table)
    table.table.append(rows_of(5, 10, "us"))
    table.maintain(operations="compact")
    table.table.append(rows_of(1000, 3, "asia"))
    preview = previewed(table)
    outcome = computed(table)
    assert rows_read(outcome) == (Status.SUCCEEDED, 13, 2)
    assert preview.files_planned == outcome.files_planned
    assert ndv(table) == true_ndv(table) == {1: 48, 2: 3}
    assert computed_from(table) == {table.loaded.metadata.refs["main"].snapshot_id}
    assert computed(table).reason == UP_TO_DATE


def test_rows_are_read_with_deletes_applied(table: MaintainedTable) -> None:
    """Values that no row has any more do not count, and old statistics are of no use."""
    computed(table)
    first = next(f for f in data_files(table) if f.partition == ("eu",))
    commit_deletes(table, [equality_delete(103, "us"), position_delete(first.file_path, 0, "eu")])
    outcome = computed(table)
    assert rows_read(outcome) == (Status.SUCCEEDED, 38, 4)
    assert ndv(table) == true_ndv(table) == {1: 38, 2: 2}
    commit_deletes(table, [equality_delete(n, "eu") for n in [*range(50, 60), *range(150, 160)]])
    computed(table, statistics_columns="region")
    assert ndv(table) == {2: 1}, "the key column is read although no statistics are asked of it"


def test_deletes_of_a_partition_reach_no_rows_of_another(
    table: MaintainedTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Iceberg-Java reads 39 ids: us has no 50, eu has no 51 any more.  DuckDB would apply both everywhere."""
    commit_deletes(table, [equality_delete(50, "us"), equality_delete(51, "eu")])
    assert rows_read(computed(table)) == (Status.SUCCEEDED, 39, 4)
    assert ndv(table) == {1: 39, 2: 2}
    monkeypatch.setattr(apply_deletes, "KEY_BYTES", 2**40)
    commit_deletes(table, [equality_delete(60, "us")])
    assert rows_read(computed(table)) == (Status.SUCCEEDED, 39, 4)


def test_an_append_that_deletes_is_found_out(table: MaintainedTable) -> None:
    """Its summary says append, its manifests do not."""
    computed(table)
    commit_deletes(table, [equality_delete(103, "us")])
    path = local_path(table.loaded.metadata_location)
    document = json.loads(path.read_text())
    document["snapshots"][-1]["summary"]["operation"] = "append"
    path.write_text(json.dumps(document))
    assert rows_read(computed(table)) == (Status.SUCCEEDED, 39, 4)
    assert ndv(table) == true_ndv(table) == {1: 39, 2: 2}


def test_deletion_vectors_are_applied(table: MaintainedTable) -> None:
    upgrade(table)
    first = data_files(table)[0]
    delete_positions(table, {first.file_path: [0, 1, 2]})
    assert computed(table).summary == (
        "computed statistics of 2 column(s) over 37 row(s); partition statistics of 2 partition(s)"
    )
    assert ndv(table) == {1: 37, 2: 2}
    (counted,) = table.loaded.metadata.partition_statistics
    rows = pq.read_table(local_path(counted["statistics-path"])).to_pylist()
    assert sorted((r["total_record_count"], r["data_record_count"], r["dv_count"]) for r in rows) == [
        (17, 20, 1),
        (20, 20, 0),
    ]


def test_schema_evolution(table: MaintainedTable) -> None:
    """A column that is new is read, one that was promoted is hashed anew, as soon as rows were added."""
    computed(table)
    with table.table.update_schema() as update:
        update.add_column("more", DoubleType())
    outcome = computed(table)
    assert outcome.summary == "computed statistics of 1 column(s) over 40 row(s)"
    assert outcome.metrics["compute_statistics.blobs_carried"] == 2
    assert ndv(table) == {1: 40, 2: 2, 3: 0}


def test_a_promoted_column_is_read_anew(tmp_path: Path) -> None:
    """The same number has other bytes as a long: united with the old sketch it would count twice."""
    with maintained_table(tmp_path) as table:
        made = table.create(pa.schema([("n", pa.int32())]))
        made.append(pa.table({"n": pa.array([1, 2, 3], pa.int32())}))
        computed(table)
        with made.update_schema() as update:
            update.update_column("n", LongType())
        assert computed(table).reason == UP_TO_DATE
        made.append(pa.table({"n": pa.array([3, 4], pa.int64())}))
        assert rows_read(computed(table)) == (Status.SUCCEEDED, 5, 2)
        assert ndv(table) == {1: 4}
