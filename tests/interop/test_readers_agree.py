"""PyIceberg, DuckDB and Iceberg-Java read a table after compaction and a rewrite of its manifests."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import fastavro
import pytest
from pyiceberg.table import StaticTable

from icekeeper.model import EntryStatus
from icekeeper.policy import Operation
from icekeeper.report.outcome import PassStatus, Status
from support.evolved import Compacted, compact_evolved
from support.iceberg_java import IcebergJava
from support.maintained_table import local_path, outcome_of
from support.readers import canonical, duckdb_rows, pyiceberg_rows, rows_by_engine


def partitions(location: str) -> Counter[tuple[int, str]]:
    """The number of files per spec and partition in PyIceberg's scan plan."""
    tasks = StaticTable.from_metadata(location).scan().plan_files()
    return Counter((task.file.spec_id, repr(task.file.partition)) for task in tasks)


def test_the_pass_merges_files_and_rewrites_manifests(compacted: Compacted) -> None:
    assert compacted.outcome.status is PassStatus.SUCCEEDED
    before = partitions(compacted.before)
    merged = [files for files in before.values() if files > 1]
    assert {spec_id for (spec_id, _), files in before.items() if files > 1} == {0, 1, 2, 3}
    compact = outcome_of(compacted.outcome, Operation.COMPACT)
    assert compact.summary == f"compacted {sum(merged)} files into {len(merged)} (across {len(merged)} bins)"
    assert partitions(compacted.after) == Counter(before.keys())
    assert len(compacted.outputs()) == len(merged)
    rewritten = outcome_of(compacted.outcome, Operation.REWRITE_MANIFESTS)
    assert rewritten.status is Status.SUCCEEDED
    assert sorted(m.partition_spec_id for m in compacted.manifests()) == [0, 1, 2, 3]
    assert not compacted.table.problems()


@pytest.mark.slow
def test_three_readers_agree(compacted: Compacted, iceberg_java: IcebergJava) -> None:
    """All three read the head and Icekeeper's snapshots; PyIceberg and DuckDB also read three older snapshots."""
    head = canonical(pyiceberg_rows(compacted.before))
    assert len(head) == 80
    everywhere = dict.fromkeys(("pyiceberg", "duckdb", "java"), head)
    assert rows_by_engine(compacted.after, iceberg_java) == everywhere
    *older, compaction, manifests = compacted.snapshot_ids()
    for snapshot_id in (compaction, manifests):
        assert rows_by_engine(compacted.after, iceberg_java, snapshot_id) == everywhere
    for snapshot_id in (older[0], older[5], older[-1]):
        old = canonical(pyiceberg_rows(compacted.before, snapshot_id))
        for read in (pyiceberg_rows, duckdb_rows):
            assert canonical(read(compacted.after, snapshot_id)) == old, snapshot_id


def test_java_reads_types_that_spark_lacks(tmp_path: Path, iceberg_java: IcebergJava) -> None:
    """PyIceberg, DuckDB and Java's generic reader read ``time`` and a partition by it."""
    made = compact_evolved(2, tmp_path, with_time=True)
    assert made.outcome.status is PassStatus.SUCCEEDED
    assert len(made.outputs()) == sum(files > 1 for files in partitions(made.before).values()) > 10
    rows = canonical(pyiceberg_rows(made.before))
    assert canonical(pyiceberg_rows(made.after)) == canonical(duckdb_rows(made.after)) == rows
    jvm: Any = iceberg_java.session._jvm
    io = jvm.org.apache.iceberg.hadoop.HadoopFileIO(iceberg_java.session._jsc.hadoopConfiguration())
    operations = jvm.org.apache.iceberg.StaticTableOperations(made.after, io)
    java = jvm.org.apache.iceberg.BaseTable(operations, "evolved")
    records = jvm.org.apache.iceberg.data.IcebergGenerics.read(java).build().iterator()
    clocks: Counter[tuple[int, str]] = Counter()
    while records.hasNext():
        record = records.next()
        clock = record.getField("clock")
        clocks[record.getField("id"), "None" if clock is None else str(clock.toString())] += 1
    wanted = pyiceberg_rows(made.before)
    assert clocks == Counter((row["id"], str(row["clock"])) for row in wanted)


def test_files_that_are_not_merged_keep_their_snapshot_and_sequence_numbers(compacted: Compacted) -> None:
    """New manifests state them explicitly (rule: carry-entries-explicitly), as the data sequence number of outputs
    (rule: keep-planning-sequence-number)."""

    def numbers(location: str) -> dict[str, tuple[int | None, int | None, int | None]]:
        table = StaticTable.from_metadata(location)
        snapshot = table.current_snapshot()
        assert snapshot is not None
        entries = [e for manifest in snapshot.manifests(table.io) for e in manifest.fetch_manifest_entry(table.io)]
        return {e.data_file.file_path: (e.snapshot_id, e.sequence_number, e.file_sequence_number) for e in entries}

    before, after = numbers(compacted.before), numbers(compacted.after)
    untouched = before.keys() & after.keys()
    assert len(untouched) > 10
    assert {path: after[path] for path in untouched} == {path: before[path] for path in untouched}
    compaction, manifests = (i for operation in compacted.outcome.operations for i in operation.snapshot_ids)
    snapshots = compacted.table.reader.metadata.snapshots
    planned, ours = (snapshots[i or 0].sequence_number for i in (snapshots[compaction].parent_id, compaction))
    assert {after[path] for path in compacted.outputs()} == {(compaction, planned, ours)}
    for manifest in compacted.manifests():
        with local_path(manifest.manifest_path).open("rb") as stream:
            written: list[Any] = list(fastavro.reader(stream))
        assert {entry["status"] for entry in written} == {EntryStatus.EXISTING}
        assert manifests not in {entry["snapshot_id"] for entry in written}
        if compacted.format_version > 1:
            assert all(entry["sequence_number"] and entry["file_sequence_number"] for entry in written)


PREDICATES = [
    "category = 'a'",
    "category IS NULL",
    "day = '2024-02-29'",
    "price < '-2.00'",
    "at > '2000-01-01T00:00:00+00:00'",
    "label_text LIKE 'fü%'",
    "label_text > '\U0010ffff'",
    "id = 70",
    "id > 1000000000",
    "huge < '-2999999999999999999999999999.0000000000'",
    "value IS NAN",
    "extra IS NULL",
]


def test_pruning_opens_no_more_partitions_than_before(compacted: Compacted) -> None:
    """Within a partition, the bounds of a merged file cover those of its inputs."""

    def planned(location: str, predicate: str) -> set[tuple[int, str]]:
        tasks = StaticTable.from_metadata(location).scan(row_filter=predicate).plan_files()
        return {(task.file.spec_id, repr(task.file.partition)) for task in tasks}

    for predicate in PREDICATES:
        assert planned(compacted.after, predicate) <= planned(compacted.before, predicate), predicate


@pytest.fixture(scope="module")
def moved(tmp_path_factory: pytest.TempPathFactory) -> Compacted:
    """A table whose rows of older specs moved to the current spec, where that is certain or makes fewer files."""
    return compact_evolved(2, tmp_path_factory.mktemp("moved"), output_spec="current")


def files_by_spec(location: str) -> Counter[int]:
    return Counter(task.file.spec_id for task in StaticTable.from_metadata(location).scan().plan_files())


def test_rows_that_moved_to_the_current_spec_make_fewer_files(compacted: Compacted, moved: Compacted) -> None:
    """Both the files of old specs and all files become fewer."""
    stayed, now = files_by_spec(compacted.after), files_by_spec(moved.after)
    assert sum(now[old] for old in (0, 1, 2)) < sum(stayed[old] for old in (0, 1, 2))
    assert sum(now.values()) < sum(stayed.values())


def test_pruning_opens_no_more_files_after_rows_moved_to_the_current_spec(moved: Compacted) -> None:
    """The partitions differ, so the test counts files."""
    for predicate in PREDICATES:
        if predicate.startswith("id = "):
            continue  # the current spec has no partition field of id, so it does not separate files by id
        files_before, files_after = (
            len(list(StaticTable.from_metadata(location).scan(row_filter=predicate).plan_files()))
            for location in (moved.before, moved.after)
        )
        assert files_after <= files_before, predicate
