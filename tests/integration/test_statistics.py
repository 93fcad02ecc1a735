"""Statistics of a changing table: computed, carried over, recomputed, and never wrong."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from icekeeper.catalogs.catalog import LoadedTable
from icekeeper.engines.local_engine import LocalEngine
from icekeeper.engines.spark import SparkEngine
from icekeeper.errors import CommitConflict, CommitStateUnknown, StorageError
from icekeeper.operations.statistics import compute_statistics as sketches
from icekeeper.operations.statistics import sketch_task as task
from icekeeper.policy import Operation
from icekeeper.report.outcome import OperationOutcome, PassOutcome, Status
from icekeeper.rows import equality_keys
from icekeeper.state.findings import RETRY_MS
from icekeeper.storage.storage import Storage
from support.deletes import commit_deletes, create_by_region, equality_delete, position_delete, rows_of
from support.maintained_table import NAME, MaintainedTable, local_path, maintained_table, outcome_of
from support.readers import duckdb_rows
from support.v3 import data_files

# Functions that compute statistics of a table and read the result.

UP_TO_DATE = "statistics are up to date"


def computed(table: MaintainedTable, **settings: Any) -> OperationOutcome:
    outcome = table.maintain(operations="compute_statistics", **settings)
    return outcome_of(outcome, Operation.COMPUTE_STATISTICS)


def previewed(table: MaintainedTable, **settings: str) -> OperationOutcome:
    overrides = {"operations": "compute_statistics", **settings}
    outcome: PassOutcome = table.runtime.maintain(NAME, overrides, table.engine, dry_run=True)
    return outcome_of(outcome, Operation.COMPUTE_STATISTICS)


def entry(table: MaintainedTable) -> dict[str, Any]:
    """The statistics entry of the head."""
    metadata = table.loaded.metadata
    head = metadata.refs["main"].snapshot_id
    (found,) = (dict(e) for e in metadata.statistics if e["snapshot-id"] == head)
    return found


def ndv(table: MaintainedTable) -> dict[int, int]:
    """Field id → number of distinct values in the table's metadata."""
    return {blob["fields"][0]: int(blob["properties"]["ndv"]) for blob in entry(table)["blob-metadata"]}


def computed_from(table: MaintainedTable) -> set[int]:
    return {blob["snapshot-id"] for blob in entry(table)["blob-metadata"]}


def true_ndv(table: MaintainedTable) -> dict[int, int]:
    """Field id → number of distinct values that DuckDB reads."""
    rows = duckdb_rows(table.loaded.metadata_location)
    return {1: len({row["id"] for row in rows}), 2: len({row["region"] for row in rows})}


def rows_read(outcome: OperationOutcome) -> tuple[Status, int, int]:
    metrics = outcome.metrics
    return outcome.status, int(metrics["compute_statistics.rows_read"]), int(metrics["compute_statistics.files_read"])


# Statistics of a table in use: which files are read, which statistics are carried over, and all are right.


@pytest.fixture
def table(tmp_path: Path) -> Iterator[MaintainedTable]:
    """A table partitioned by region, with two files of ten rows each in us and in eu: forty ids."""
    with maintained_table(tmp_path) as made:
        create_by_region(made, 2)
        yield made


def test_the_first_computation_reads_every_file(table: MaintainedTable) -> None:
    before = table.loaded.metadata
    preview = previewed(table)
    assert table.loaded.metadata.document == before.document
    outcome = computed(table)
    assert outcome.summary == (
        "computed statistics of 2 column(s) over 40 row(s); partition statistics of 2 partition(s)"
    )
    assert preview.summary == "would compute statistics of 2 column(s) from 4 file(s); would count partitions"
    assert preview.files_planned == outcome.files_planned
    assert set(outcome.files_planned) == {f.file_path for f in data_files(table)}
    assert outcome.metrics.keys() == {
        f"compute_statistics.{key}"
        for key in (
            ["columns", "columns_unsupported", "blobs_carried", "rows_read", "files_read", "partitions", "duration_ms"]
        )
    }
    assert rows_read(outcome) == (Status.SUCCEEDED, 40, 4)
    after = table.loaded.metadata
    assert (after.refs, after.snapshots.keys()) == (before.refs, before.snapshots.keys())
    assert ndv(table) == true_ndv(table) == {1: 40, 2: 2}
    table.assert_sound()
    assert computed(table).reason == previewed(table).reason == UP_TO_DATE


def test_columns_in_structs_have_dotted_names(tmp_path: Path) -> None:
    """In rows where the struct is null, the column is null."""
    with maintained_table(tmp_path) as table:
        points = [{"x": 1, "y": 1}, {"x": 1, "y": 2}, None, {"x": None, "y": 3}]
        schema = pa.schema([("point", pa.struct([("x", pa.int64()), ("y", pa.int64())]))])
        table.create(schema).append(pa.table({"point": points}, schema=schema))
        assert computed(table).reason == "no column has a type with statistics"
        assert computed(table).metrics["compute_statistics.columns_unsupported"] == 1
        chosen = computed(table, statistics_columns="point.y,point.x")
        assert chosen.metrics["compute_statistics.columns_unsupported"] == 0
        names = {"x": 2, "y": 3}
        assert ndv(table) == {names["x"]: 1, names["y"]: 3}


def test_partition_statistics_are_written_as_avro_if_parquet_is_refused(
    table: MaintainedTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = Storage.write

    def guarded(storage: Storage, path: str, data: bytes) -> None:
        if path.endswith(".parquet"):
            raise StorageError(f"{path} is refused")
        write(storage, path, data)

    monkeypatch.setattr(Storage, "write", guarded)
    assert computed(table).status is Status.SUCCEEDED
    (counted,) = table.loaded.metadata.partition_statistics
    assert counted["statistics-path"].endswith(".avro")
    assert local_path(counted["statistics-path"]).stat().st_size == counted["file-size-in-bytes"]
    table.assert_sound()


@pytest.mark.parametrize("engine", ["local", "spark"])
def test_many_tasks_give_the_same_statistics(
    table: MaintainedTable, engine: str, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    """Other processes run a task per file, two at a time."""
    monkeypatch.setattr(task, "_TASK_BYTES", 1)
    monkeypatch.setattr(sketches, "_WAVE", 2)
    progress: list[tuple[str, int, int]] = []
    session: SparkSession | None = request.getfixturevalue("spark_session") if engine == "spark" else None
    chosen = LocalEngine(2) if session is None else SparkEngine(session.sparkContext)
    outcome = table.runtime.maintain(
        NAME, {"operations": "compute_statistics"}, chosen, progress=lambda *step: progress.append(step)
    )
    assert rows_read(outcome.operations[0]) == (Status.SUCCEEDED, 40, 4)
    assert ndv(table) == {1: 40, 2: 2}
    steps = [(done, total) for what, done, total in progress if what == "compute_statistics: file groups"]
    assert steps == sorted(steps)
    assert {(0, 4), (2, 4), (4, 4)} <= set(steps)


def test_statistics_of_another_branch_are_computed(table: MaintainedTable) -> None:
    snapshot = table.table.current_snapshot()
    assert snapshot is not None
    table.table.manage_snapshots().create_branch(snapshot.snapshot_id, "audit").commit()
    table.table.append(rows_of(5, 10, "us"))
    assert rows_read(computed(table, branch="audit")) == (Status.SUCCEEDED, 40, 4)
    assert [e["snapshot-id"] for e in table.loaded.metadata.statistics] == [snapshot.snapshot_id]
    assert rows_read(computed(table)) == (Status.SUCCEEDED, 10, 1)


# Statistics beside other writers and damaged files, and their treatment by verify and orphan removal.


def test_an_unreadable_file_leaves_the_table_without_wrong_statistics(table: MaintainedTable) -> None:
    """The next passes do not read it, and the table is not proposed again (rule: leave-out-unreadable-files)."""
    settings = {"operations": "compute_statistics"}
    location, before = table.loaded.metadata_location, table.files()
    lost = local_path(data_files(table)[0].file_path)
    lost.rename(lost.with_suffix(".lost"))
    assert [p.reasons for p in table.runtime.detect(settings).proposals] == [("2 columns have no statistics",)]
    outcome = computed(table)
    path = data_files(table)[0].file_path
    reason = f"{path} does not exist; statistics without its rows would be wrong, so none were computed"
    assert (outcome.status, outcome.reason) == (Status.SKIPPED, reason)
    table.engine.during = lambda: pytest.fail("files were read")
    again = computed(table)
    assert (again.status, again.reason) == (Status.SKIPPED, reason)
    assert table.loaded.metadata_location == location
    detected = table.runtime.detect(settings)
    assert detected.proposals == ()
    assert "1 file is left alone, except for one attempt a week" in (detected.skipped[0].warning or "")
    lost.with_suffix(".lost").rename(lost)
    assert table.files() == before
    table.late_ms, table.engine.during = RETRY_MS + 1, lambda: None
    assert computed(table).status is Status.SUCCEEDED
    assert table.runtime.afresh.health(NAME).warnings.keys() & {"unreadable_files"} == set()


def test_statistics_of_a_damaged_file_are_computed_again(table: MaintainedTable) -> None:
    computed(table)
    for number, damage in enumerate(("gone", "cut", "other blobs", "sketch")):
        path = local_path(entry(table)["statistics-path"])
        data, ids = path.read_bytes(), ndv(table)[1]
        changed = {
            "cut": data[:-5],
            "other blobs": data.replace(f'"ndv": "{ids}"'.encode(), f'"ndv": "{ids + 1}"'.encode()),
            "sketch": data[:10] + b"\xff\xff" + data[12:],
        }
        path.unlink() if damage == "gone" else path.write_bytes(changed[damage])
        table.table.append(rows_of(5 * (number + 1), 10, "us"))
        assert rows_read(computed(table)) == (Status.SUCCEEDED, 50 + 10 * number, 5 + number), damage
        assert ndv(table) == true_ndv(table)


def test_an_append_during_the_computation_does_not_disturb_it(table: MaintainedTable) -> None:
    """The statistics belong to the snapshot that was read, and are still right."""
    planned = table.loaded.metadata.refs["main"].snapshot_id
    table.engine.during = lambda: table.table.append(rows_of(1000, 10, "us"))
    assert computed(table).status is Status.SUCCEEDED
    metadata = table.loaded.metadata
    assert [e["snapshot-id"] for e in metadata.statistics] == [planned]
    assert metadata.refs["main"].snapshot_id != planned
    table.engine.during = lambda: None
    assert rows_read(computed(table)) == (Status.SUCCEEDED, 10, 1)


def test_a_snapshot_that_expires_during_the_pass_gets_no_statistics(table: MaintainedTable) -> None:
    before = table.files()

    def overtake() -> None:
        table.engine.during = lambda: None
        table.table.append(rows_of(1000, 10, "us"))
        # Icekeeper's own expiry would keep the snapshot, because the running job has a pin.
        table.table.maintenance.expire_snapshots().by_id(planned).commit()

    planned = table.loaded.metadata.refs["main"].snapshot_id
    table.engine.during = overtake
    outcome = computed(table)
    assert (outcome.status, outcome.reason) == (Status.FAILED, f"snapshot {planned} expired meanwhile")
    assert not table.loaded.metadata.statistics
    assert not {path for path in table.files() - before if path.endswith(".stats")}


def test_staged_files_of_a_lost_commit_are_deleted(table: MaintainedTable) -> None:
    before = table.files()

    def lose(base: LoadedTable, requirements: Any, updates: Any) -> LoadedTable:
        with table.table.transaction() as faster:
            faster.set_properties(somebody="was faster")
        raise CommitConflict("somebody was faster")

    table.catalog.commit_instead = lose
    assert computed(table, max_commit_retries="0").status is Status.FAILED
    assert [path for path in table.files() - before if not path.endswith(".metadata.json")] == []


def test_staged_files_of_a_commit_with_unknown_outcome_are_kept(
    table: MaintainedTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The commit lands, and its answer is lost."""
    inner = table.catalog.inner

    def silent(base: LoadedTable, requirements: Any, updates: Any) -> LoadedTable:
        inner.commit(base, requirements, updates)
        raise CommitStateUnknown("no answer")

    monkeypatch.setattr("icekeeper.commit.retry.backoff_seconds", lambda attempt: 0.0)
    table.catalog.commit_instead = silent
    assert computed(table).status is Status.SUCCEEDED
    assert ndv(table) == {1: 40, 2: 2}
    table.assert_sound()


def test_verify_compares_statistics_files_with_the_table(table: MaintainedTable) -> None:
    computed(table)
    path = local_path(table.loaded.metadata_location)
    document = json.loads(path.read_text())
    document["statistics"][0]["file-size-in-bytes"] = 7
    path.write_text(json.dumps(document))
    lost, changed = (
        str(part[0]["statistics-path"]) for part in (document["partition-statistics"], document["statistics"])
    )
    local_path(lost).unlink()
    problems = table.runtime.verify(NAME).problems
    assert sorted((p.kind.value, p.path) for p in problems) == [
        ("missing_file", lost),
        ("statistics", changed),  # a blob reaches into the footer
        ("wrong_size", changed),
    ]


def test_orphan_removal_deletes_only_replaced_statistics(table: MaintainedTable) -> None:
    computed(table, statistics_columns="id")
    replaced = local_path(entry(table)["statistics-path"])
    computed(table)
    table.maintain(operations="remove_orphans")
    assert not replaced.exists()
    assert local_path(entry(table)["statistics-path"]).exists()
    table.assert_sound()


# Files that a later computation reads, and rows that deletes remove from statistics.


def test_after_a_rewrite_statistics_are_carried_over_without_reading_files(table: MaintainedTable) -> None:
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
    # Expiry removes the snapshot and its statistics, but not those of the head.
    table.maintain(operations="expire_snapshots")
    assert computed_from(table).isdisjoint(table.loaded.metadata.snapshots)
    assert computed(table).reason == UP_TO_DATE
    table.assert_sound()
    table.table.append(rows_of(5, 10, "us"))
    assert rows_read(computed(table)) == (Status.SUCCEEDED, 10, 1)
    assert ndv(table) == true_ndv(table) == {1: 45, 2: 2}


def test_rows_are_read_with_deletes_applied(table: MaintainedTable) -> None:
    """Values that only deleted rows have do not count, so old statistics cannot be carried over."""
    computed(table)
    first = next(f for f in data_files(table) if f.partition == ("eu",))
    commit_deletes(table, [equality_delete(103, "us"), position_delete(first.file_path, 0, "eu")])
    outcome = computed(table)
    assert rows_read(outcome) == (Status.SUCCEEDED, 38, 4)
    assert ndv(table) == true_ndv(table) == {1: 38, 2: 2}
    commit_deletes(table, [equality_delete(n, "eu") for n in [*range(50, 60), *range(150, 160)]])
    computed(table, statistics_columns="region")
    assert ndv(table) == {2: 1}, "the key column is read although no statistics are asked of it"


def test_deletes_of_a_partition_do_not_apply_to_another(
    table: MaintainedTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Iceberg-Java reads 39 ids: us has no id 50, and the 51 of eu is deleted.  DuckDB would apply both everywhere."""
    commit_deletes(table, [equality_delete(50, "us"), equality_delete(51, "eu")])
    assert rows_read(computed(table)) == (Status.SUCCEEDED, 39, 4)
    assert ndv(table) == {1: 39, 2: 2}
    monkeypatch.setattr(equality_keys, "KEY_BYTES", 2**40)
    commit_deletes(table, [equality_delete(60, "us")])
    assert rows_read(computed(table)) == (Status.SUCCEEDED, 39, 4)


def test_an_append_with_deletes_is_recognized(table: MaintainedTable) -> None:
    """Its summary has operation append, but its manifests have deletes."""
    computed(table)
    commit_deletes(table, [equality_delete(103, "us")])
    path = local_path(table.loaded.metadata_location)
    document = json.loads(path.read_text())
    document["snapshots"][-1]["summary"]["operation"] = "append"
    path.write_text(json.dumps(document))
    assert rows_read(computed(table)) == (Status.SUCCEEDED, 39, 4)
    assert ndv(table) == true_ndv(table) == {1: 39, 2: 2}
